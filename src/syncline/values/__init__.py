"""Values that every layer shares: identifiers, records, limits. No behaviour beyond checking them."""
