# The verbs of the project. Each makes its environment ready first; that takes a moment once it is.

PYTHON ?= python3
# Test processes at a time: `make test JOBS=1` shows output in order.
JOBS ?= auto
# More words for the program behind a verb: `make test ARGS="-k quota"`, `make serve ARGS="--help"`.
ARGS ?=

setup := $(PYTHON) tools/setup_environment.py
bin := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-all check format coverage bench pages constraints clean

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: ## Start a router here
	@$(setup) --extra fast
	@$(bin)/syncline serve $(ARGS)

demo: ## A router, a fault, and the proof of what happened, in about a minute
	@$(setup) --extra fast --extra spark
	@$(bin)/syncline demo $(ARGS)

test: ## Run the tests (a few minutes at most)
	@$(setup) --extra fast --extra test --extra check
	@$(bin)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-all: ## Run the tests, the long ones too
	@$(setup) --extra fast --extra test --extra check
	@$(bin)/python -m pytest -n $(JOBS) --dist worksteal -m "long or not long" $(ARGS)

check: ## Formatting, lint, types and layers
	@$(setup) --extra fast --extra test --extra check
	@failed=; for step in "ruff format --check ." "ruff check ." "lint-imports --no-logo" mypy pyright; do \
		echo "== $$step"; $(bin)/$$step || failed="$$failed '$$step'"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

format: ## Lay the code out and mend what can be mended by itself
	@$(setup) --extra test --extra check
	@$(bin)/ruff check --fix-only .
	@$(bin)/ruff format .

coverage: ## Run the tests and show which lines and branches none of them reached
	@$(setup) --extra fast --extra test --extra check
	@$(bin)/coverage erase
	@$(bin)/coverage run -m pytest $(ARGS)
	@$(bin)/coverage combine --quiet
	@$(bin)/coverage report

bench: ## Measure against others: make bench NAME=log
	@test -n "$(NAME)" || { echo "say which: make bench NAME=log" >&2; exit 2; }
	@$(setup) --extra fast --extra bench
	@$(bin)/python -m bench.$(NAME) $(ARGS)

pages: ## Build the pages that a router serves, from web/
	@$(PYTHON) tools/build_pages.py

constraints: ## Write constraints.txt anew from what is installed
	@$(bin)/python tools/write_constraints.py

clean: ## Remove the environment and what tools left behind
	rm -rf .venv .coverage .coverage.* htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache build dist
