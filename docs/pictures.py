"""Write docs/images/run-light.png and run-dark.png: the top of the page of a run, as a browser shows it.

python docs/pictures.py RUN_DIR       it needs chromium (or CHROMIUM, a path to it)
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

IMAGES = Path(__file__).with_name("images")
SCHEMES = {"dark": 0, "light": 1}
SIZE = (1100, 1500)
COLOURS = 64  # enough for text and curves, and a quarter of the size


def picture(page: Path, scheme: str, target: Path) -> None:
    """Write a picture of the top of a page. Raises CalledProcessError, SystemExit without a browser."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("There is no chromium. Install it, or set CHROMIUM to its path.")
    with TemporaryDirectory() as profile:
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={SIZE[0]},{SIZE[1]}", f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        ]  # fmt: skip
        command = [browser, *options, f"--screenshot={target}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name in SCHEMES:
        picture(Path(sys.argv[1]) / "report.html", name, IMAGES / f"run-{name}.png")
