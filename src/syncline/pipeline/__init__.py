"""The data pipeline on Spark: it reads what routers wrote. Needs the extra `spark`."""
