import pytest

from embodied.commands.main import main
from embodied.errors import EXIT_DONE, EXIT_REFUSED
from embodied.scheduler.plan import Plan


def test_plan_prints_table_reason_and_what_the_others_lose_and_writes_plan_and_picture(tmp_path, capsys):
    plan, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    code = main(
        [
            "plan",
            "maniskill_ppo_openvla",
            "cluster.gpus=16",
            "--compare",
            "--output",
            str(plan),
            "--picture",
            str(picture),
        ]
    )
    text = capsys.readouterr().out
    assert code == EXIT_DONE
    for words in (
        "env ",
        "policy ",
        "learner ",
        "why        mixed, because",
        "best shared: ",
        "best split: ",
        "GiB",
        "idle",
    ):
        assert words in text
    placed = Plan.from_json(plan.read_text())
    assert set(placed.stages) == {"env", "policy", "learner"}
    assert len(placed.stages["learner"].devices) == 16
    assert not set(placed.stages["env"].devices) & set(placed.stages["policy"].devices)
    assert "<svg" in picture.read_text()


def test_a_profile_of_ones_own_is_planned_without_hardware(tmp_path, capsys):
    from embodied.commands.plan import shipped_profiles

    own = tmp_path / "own.json"
    own.write_text(shipped_profiles()["paper/libero_openvla_oft"].read_text())
    assert main(["plan", "anything", "cluster.gpus=8", "cluster.nodes=1", "--profile", str(own)]) == EXIT_DONE
    assert "shared, because" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "name a recipe or a profile"),
        (["plan", "unheard_of"], "no profile for the recipe 'unheard_of'"),
        (["plan", "paper/grpo_qwen2_5_7b", "cluster.gpus=ten"], "cluster.gpus is 'ten'"),
        (["plan", "paper/grpo_qwen2_5_7b", "cluster.gpu=8"], "Did you mean 'cluster.gpus'"),
        (["plan", "paper/grpo_qwen2_5_7b", "cluster.gpus=65", "cluster.nodes=8"], "cluster.gpus: 64, 72"),
        (["plan", "paper/grpo_qwen2_5_7b", "cluster.gpus=1"], "one replica of stage 'generate' takes 2 devices"),
        (["plan", "paper/grpo_qwen2_5_7b", "--picture", "plan.gif"], "must end in one of"),
        (["plan", "paper/grpo_qwen2_5_7b", "--output", "no/such/folder/plan.json"], "does not exist"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(arguments, message, capsys):
    assert main(arguments) == EXIT_REFUSED
    assert message in capsys.readouterr().err


def test_the_profiles_that_ship_are_listed(capsys):
    assert main(["plan", "--profiles"]) == EXIT_DONE
    assert "paper/maniskill_openvla" in capsys.readouterr().out
