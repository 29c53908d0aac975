from benchmark_scripts import run


def test_every_command_is_measured() -> None:
    head, *lines = run("watching.py", "--rows", "300", "--runs", "2").splitlines()
    assert head.startswith("300 rows")
    names = [line[:14].strip() for line in lines]
    assert names == [
        "nothing", "runs, long", "watch, long", "report, long", "runs, many", "report, many",
    ]  # fmt: skip
    assert all(line.endswith(" MB") for line in lines)
