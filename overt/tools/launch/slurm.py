"""Slurm: write a readable batch script for a run, and submit it.

The script trains, reads how the training ended, and decides whether the job is requeued under its
own number. docs/slurm.md explains every part.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overt.errors import PREEMPTED_EXIT_CODE, LaunchError
from overt.tools.launch.settings import SlurmSettings
from overt.tools.launch.size import Size

FOLDER = "slurm"  # below the run's folder: scripts, logs, notes


@dataclass(frozen=True)
class Run:
    """One training of a job: its folder, and the words of `overt train`."""

    run_dir: Path
    words: Sequence[str]


@dataclass(frozen=True)
class Job:
    """What one script trains: one run, or the runs of a sweep as a job array."""

    name: str
    runs: Sequence[Run]
    size: Size
    settings: SlurmSettings
    folder: Path  # of scripts and logs
    work_dir: Path

    @property
    def script(self) -> Path:
        return self.folder / f"{self.name.replace('/', '_')}.sh"

    @property
    def log(self) -> Path:
        return self.folder / ("%A_%a.log" if len(self.runs) > 1 else "%j.log")


def render(job: Job) -> str:
    """Return the batch script."""
    parts = [
        _header(job),
        _environment(job.settings),
        _runs(job),
        _SESSION,
        _training(job),
        _ending(job.settings),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def submit(job: Job, after: Sequence[str] = ()) -> str:
    """Write the script, hand it to sbatch, and return the number of the job."""
    job.folder.mkdir(parents=True, exist_ok=True)
    job.script.write_text(render(job))
    command = ["sbatch", "--parsable"]
    if after:
        # Where an earlier job fails for good, those that need it are canceled, not kept waiting.
        command += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    try:
        done = subprocess.run(
            [*command, str(job.script)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise LaunchError(
            f"sbatch is not installed here; submit {job.script} on a machine of the cluster, or "
            "show it with --print"
        ) from None
    if done.returncode:
        raise LaunchError(f"sbatch refused {job.script}: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]  # NUMBER;CLUSTER on some sites


def _header(job: Job) -> str:
    settings, size = job.settings, job.size
    tasks = size.processes if settings.tasks_per == "gpu" else 1
    cpus = settings.cpus_per_process
    options = {
        "job-name": job.name,
        "nodes": size.nodes,
        "ntasks-per-node": tasks,
        "gpus-per-node": size.gpus or None,
        "cpus-per-task": None if cpus is None else cpus * size.processes // tasks,
        "time": settings.time,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "array": f"0-{len(job.runs) - 1}" if len(job.runs) > 1 else None,
        # Without `B:` the signal reaches the training processes, not this shell.
        "signal": f"USR1@{settings.signal_seconds}",
        "open-mode": "append",  # a requeued job continues the same log
        "output": _pattern(job.log),
        "chdir": str(job.work_dir),
    }
    lines = [f"--{key}={value}" for key, value in options.items() if value is not None]
    lines += ["--requeue", *settings.sbatch]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# Written by `overt launch slurm`: {job.name} on {size}.",
            *(f"#SBATCH {shlex.quote(line)}" for line in lines),
        ]
    )


def _pattern(path: Path) -> str:
    """Return a path for --output, in which only the file's name has patterns."""
    return f"{str(path.parent).replace('%', '%%')}/{path.name}"


def _environment(settings: SlurmSettings) -> str:
    return "\n".join(
        [
            *(f"module load {shlex.quote(name)}" for name in settings.modules),
            *(f"export {name}={shlex.quote(value)}" for name, value in settings.env.items()),
            *settings.setup,
        ]
    )


def _runs(job: Job) -> str:
    """Return the run's folder and words; in an array, those of this task."""
    chosen = [
        f"run={shlex.quote(str(run.run_dir))}\nwords=({_lines(run.words)})" for run in job.runs
    ]
    if len(chosen) == 1:
        return chosen[0]
    cases = [f"{index})\n{text}\n;;" for index, text in enumerate(chosen)]
    return "\n".join(['case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"])


def _lines(words: Sequence[str]) -> str:
    return "".join(f"\n  {shlex.quote(word)}" for word in words) + "\n"


_SESSION = """\
# A task of an array is named by both numbers: the first alone would mean all of them.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
session=${SLURM_RESTART_COUNT:-0}  # not set before the first restart
state=$run/slurm/$job
notes=$state.$session.stopped  # where processes say that they have saved and left
mkdir -p "$run/slurm"
rm -rf "$notes"

say() { echo "[$(date '+%F %T')] job $job, session $session: $*"; }

newest() {  # number of saves and step of the checkpoint saved last; 0 0 before the first
  local folder step serial saves=0 newest=0
  for folder in "$run"/checkpoints/step_*; do
    [[ ${folder##*/} =~ ^step_([0-9]+)(-[0-9]+)?$ ]] || continue
    step=$(( 10#${BASH_REMATCH[1]} ))
    # Of a run that went back, the highest step is not the last one.
    serial=$(sed -n 's/^ "serial": \\([0-9][0-9]*\\),$/\\1/p' "$folder/manifest.json" 2>/dev/null)
    serial=${serial:-0}
    if (( serial > saves || (serial == saves && step > newest) )); then
      saves=$serial newest=$step
    fi
  done
  echo "$saves $newest"
}
read -r saves_before began < <(newest)

# A number of this session's own: what is left of an earlier one on a lost node cannot join.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(( 20000 + (SLURM_JOB_ID + session) % 12000 ))
say "from step $began on $SLURM_JOB_NODELIST, meeting at $head:$port\""""


def _training(job: Job) -> str:
    settings, size = job.settings, job.size
    python = settings.python or ("python3" if settings.container else sys.executable)
    step = ["srun", "--kill-on-bad-exit=1", f"--wait={settings.signal_seconds}"]
    if settings.cpus_per_process is not None:  # srun does not take it from sbatch any more
        step.append('--cpus-per-task="$SLURM_CPUS_PER_TASK"')
    inside, options = _container(job)
    lines = [" ".join([*step, *options])]
    if inside:
        lines.append(inside)
    worker = '-m overt.tools.launch.worker "$notes" "${words[@]}"'
    before = []
    if settings.tasks_per == "gpu":
        before.append('export MASTER_ADDR="$head" MASTER_PORT="$port"')
        lines.append(f"{shlex.quote(python)} {worker}")
    else:
        lines += [
            f'{shlex.quote(python)} -m overt.tools.launch.agent "$notes" 0',
            f"  --nnodes={size.nodes} --nproc-per-node={size.processes}",
            '  --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$job.$session"',
            f"  --rdzv-conf=join_timeout={settings.rendezvous_seconds}",
            f"  --max-restarts={settings.max_restarts}",
            "  --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
            f"  --shutdown-timeout={settings.signal_seconds}",
            f"  {worker}",
        ]
    return "\n".join(
        [
            *before,
            "# At preemption the processes are told first, this shell at the end: it waits.",
            "trap : TERM",
            " \\\n  ".join(lines) + " &",
            "training=$!",
            'wait "$training"; code=$?',
            'while kill -0 "$training" 2>/dev/null; do wait "$training"; code=$?; done',
        ]
    )


def _container(job: Job) -> tuple[str, list[str]]:
    """Return the command prefix and the options of srun for training in a container."""
    settings = job.settings
    if settings.container is None:
        return "", []
    folders = [*settings.mounts, str(job.work_dir), *(str(run.run_dir) for run in job.runs)]
    mounts = list(dict.fromkeys(folders))
    image = shlex.quote(settings.container)
    if settings.container_runtime == "pyxis":
        pairs = ",".join(folder if ":" in folder else f"{folder}:{folder}" for folder in mounts)
        return "", [
            f"--container-image={image}",
            f"--container-mounts={shlex.quote(pairs)}",
            f"--container-workdir={shlex.quote(str(job.work_dir))}",
        ]
    binds = " ".join(f"--bind {shlex.quote(folder)}" for folder in mounts)
    gpus = "--nv " if job.size.gpus else ""
    return f"apptainer exec {gpus}{binds} {image}", []


def _ending(settings: SlurmSettings) -> str:
    code = PREEMPTED_EXIT_CODE
    return f"""\
# How it ended: a note says that the run was asked to stop, whatever the code of srun is.
if [ -n "$(ls -A "$notes" 2>/dev/null)" ]; then code={code}; fi
rm -rf "$notes"
read -r saves saved < <(newest)
say "exit code $code at step $saved"
if [ "$code" -eq 0 ]; then exit 0; fi

fruitless=$(cat "$state.fruitless" 2>/dev/null || echo 0)  # sessions in a row
if [ "$saves" -ge "$saves_before" ] && [ "$saved" -ne "$began" ]; then
  fruitless=0
elif [ "$code" -ne {code} ] && [ "$code" -le 128 ]; then
  say "failed before it saved anything new: not requeued"
  exit "$code"
else
  fruitless=$((fruitless + 1))
fi
echo "$fruitless" > "$state.fruitless"
if [ "$fruitless" -gt {settings.max_fruitless} ]; then
  say "$fruitless sessions in a row saved nothing new: not requeued"
  exit "$code"
fi
if [ "$session" -ge {settings.max_requeues} ]; then
  say "requeued {settings.max_requeues} times already: not requeued"
  exit "$code"
fi
# A job that was canceled stays so, and one whose time of grace is over is requeued by Slurm.
if ! scontrol --oneliner show job "$job" | grep -q 'JobState=RUNNING'; then
  say "Slurm has ended this job itself: not requeued here"
  exit "$code"
fi
say "requeued from step $saved"
scontrol requeue "$job\""""
