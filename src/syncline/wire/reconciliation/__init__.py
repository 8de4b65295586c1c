"""Messages of reconciliation as bytes: docs/formats/reconciliation.md."""
