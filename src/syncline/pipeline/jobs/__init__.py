"""The jobs: each reads, transforms, checks, stages and commits; done before, it does nothing."""
