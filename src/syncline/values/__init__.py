"""Values that every layer shares: identifiers, records, limits. They check themselves, no more."""
