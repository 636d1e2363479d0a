import subprocess
from pathlib import Path
import pytest
from tests.deploy.test_image_build import *
from tests.deploy.test_image_build import builder  # noqa
pytestmark = [pytest.mark.image, pytest.mark.timeout(3000)]
def test_twice(builder, tmp_path):
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    (tree / "changelog.d/one.fix.md").write_text("A fault is gone.\n")
    named = ("-c", "user.name=one", "-c", "user.email=one@kepd.dev")
    for words in (("add", "-A"), (*named, "commit", "-q", "-m", "x: y")):
        subprocess.run(["git", "-C", str(tree), *words], check=True)
    keys = tmp_path / "k"; keys.mkdir(mode=0o700); own = ("env", f"GNUPGHOME={keys}")
    builder.run(*own, "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "one", "ed25519", "sign")
    for n in "ab":
        builder.run(*own, str(tree / "scripts/release"), "9.0.0", "--base", BASE, "--key", "one", "--debian", "trixie", "--out", str(tmp_path / n), within_s=1200)
    builder.run(*own, "gpgconf", "--kill", "all")
    print(subprocess.run(["diff", "-r", str(tmp_path/"a"), str(tmp_path/"b")], capture_output=True, text=True).stdout)
    print(subprocess.run(["ls", "-lR", str(tmp_path/"a")], capture_output=True, text=True).stdout)
for n in list(globals()):
    if n.startswith("test_") and n != "test_twice": globals().pop(n)
