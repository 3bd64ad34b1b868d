"""The name of this machine's processor, for texts and charts that say where figures were measured."""
import pathlib
import platform
import re


def processor():
    """Name, family, model and cores as Linux tells them. Virtual machines hide the model's name, so the numbers stand too."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {key: re.search(rf"^{key}\s*: (.*)$", text, re.M) for key in ("model name", "cpu family", "model")}
    values = {key: match.group(1) if match else "?" for key, match in found.items()}
    cores = len(re.findall(r"^processor\s*:", text, re.M))
    return f"{values['model name']} (family {values['cpu family']}, model {values['model']}), {cores} cores, {platform.system()}"
