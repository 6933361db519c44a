#!/usr/bin/env bash
# Train on several machines of a Slurm cluster:
#   sbatch --nodes 3 deploy/slurm.sh impala/catch --workers 3 --output_dir "$HOME/runs/catch"
# The same line resumes. The learner runs on the first machine; --output_dir must lie on a shared file system.
#SBATCH --job-name=packtrain
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
set -euo pipefail
umask 077

if [ "$#" -eq 0 ]; then
    echo "usage: sbatch [--nodes N] deploy/slurm.sh CONFIG [--KNOB VALUE]... --output_dir DIR" >&2
    exit 2
fi

# One token for each job, in a file that the machines of the job share and only you can read.
export RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN_PATH="${PACKTRAIN_JOBS:-$HOME/.packtrain-jobs}/$SLURM_JOB_ID/token"
mkdir -p "$(dirname "$RAY_AUTH_TOKEN_PATH")"
python3 -c "import secrets; print(secrets.token_hex(32))" >"$RAY_AUTH_TOKEN_PATH"
trap 'rm -rf "$(dirname "$RAY_AUTH_TOKEN_PATH")"' EXIT

# A port and a folder for each job. Ray refuses a machine on which another Ray runs, hence --exclusive above. The path
# is short since sockets lie below it.
port=$((20000 + SLURM_JOB_ID % 20000))
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address="${machines[0]}:$port"
folder="/tmp/packtrain-$SLURM_JOB_ID"
export RAY_USAGE_STATS_ENABLED=0

srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" --temp-dir "$folder" \
    -- \
    packtrain train "$@" --runtime cluster --address "$address" --min_nodes "$SLURM_JOB_NUM_NODES"
