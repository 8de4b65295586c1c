"""`doctor`: what it lists is what the verbs need."""

import json
from pathlib import Path

from typer.testing import CliRunner

from syncline.cli.main import app
from syncline.pipeline.session import PACKAGES


def test_every_package_that_the_pipeline_needs_is_listed(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"], catch_exceptions=False)
    assert set(PACKAGES) <= json.loads(said.stdout)["packages"].keys()
