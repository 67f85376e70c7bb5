"""Stands in for Slurm's commands on this machine: jobs of an array run one after the other, a requeued one again."""

from pathlib import Path

from support import tiny

COMMANDS = {
    # The shell script and its array; `$SLURM_FOLDER` keeps the script, the process of each task, and what is requeued.
    "sbatch": """
cp "$1" "$SLURM_FOLDER/script.sh"
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
export SLURM_JOB_ID=100 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
(
    for task in $(seq 0 "${last:-0}"); do
        if [ -n "$last" ]; then export SLURM_ARRAY_JOB_ID=100 SLURM_ARRAY_TASK_ID=$task; fi
        echo "$task" >> "$SLURM_FOLDER/started"
        bash "$SLURM_FOLDER/script.sh"
        while [ -e "$SLURM_FOLDER/requeue" ]; do
            rm "$SLURM_FOLDER/requeue"
            echo "$task" >> "$SLURM_FOLDER/started"
            bash "$SLURM_FOLDER/script.sh"
        done
    done
    touch "$SLURM_FOLDER/ended"
) > "$SLURM_FOLDER/output" 2>&1 &
echo "Submitted batch job 100"
""",
    "srun": """
while [ "${1#--}" != "$1" ]; do
    case "$1" in
        --output) out=$2; shift 2;;
        --error) err=$2; shift 2;;
        *) shift;;
    esac
done
name() { echo "${1:-/dev/stdout}" | sed "s/%A/100/g; s/%a/$SLURM_ARRAY_TASK_ID/g; s/%j/100/g; s/%t/0/g"; }
echo $$ > "$SLURM_FOLDER/process"
exec "$@" >> "$(name "$out")" 2>> "$(name "$err")"
""",
    "scontrol": 'echo "$@" >> "$SLURM_FOLDER/scontrol"\ntouch "$SLURM_FOLDER/requeue"\n',
    "sacct": 'echo "JobID|State|NodeList"\n',
}


def installed(folder: Path) -> dict[str, str]:
    """Writes the commands into `folder/bin`, and returns the environment that finds them."""
    (folder / "bin").mkdir(parents=True)
    for name, script in COMMANDS.items():
        command = folder / "bin" / name
        command.write_text(f"#!/bin/bash\n{script}")
        command.chmod(0o755)
    environment = tiny.environment()
    return environment | {"SLURM_FOLDER": str(folder), "PATH": f"{folder / 'bin'}:{environment['PATH']}"}
