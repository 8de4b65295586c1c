"""What every bench needs: rounds, figures, processes, a private device, made-up messages."""
