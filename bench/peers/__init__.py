"""The other stores, each driven at its own durable setting and in the way that suits it best."""
