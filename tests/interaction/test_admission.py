"""What a policy's recipe needs and this machine has not is refused before there is a run folder."""

import importlib.util

from embodied.commands.main import main


def test_flash_attention_without_its_package_is_refused_before_there_is_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "flash_attn" else found(name))
    words = ["policy.attention=flash", "policy.precision=bfloat16"]
    assert main(["train", "maniskill_ppo_openvla_oft_tiny", *words]) == 2
    assert "needs the package flash-attn" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
