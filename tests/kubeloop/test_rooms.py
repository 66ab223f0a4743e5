"""The framework knows nothing of what is built on it, and its wheel has all of its packages."""

import configparser
import re
from pathlib import Path

ROOM = Path(__file__).parents[2] / "kubeloop"
PRODUCTS = re.compile("harvester|kubevirt|rancher|headroom", re.IGNORECASE)
TEXTS = {".py", ".yaml", ".md", ".cfg", ".toml", ".mod"}


def test_no_text_of_the_framework_names_a_product() -> None:
    # porting.md is a link to the page in docs, which shows examples from Harvester.
    texts = [path for path in ROOM.rglob("*") if path.suffix in TEXTS and not path.is_symlink()]
    assert len(texts) > 80
    naming = {
        f"{path.relative_to(ROOM)}:{number}: {line}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRODUCTS.search(line)
    }
    assert naming == set()


def test_the_wheel_has_every_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOM / "setup.cfg")
    packages = {".".join(path.parent.relative_to(ROOM.parent).parts) for path in ROOM.rglob("__init__.py")}
    assert set(config["options"]["packages"].split()) == packages
