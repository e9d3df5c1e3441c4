# A trial under the official determined package, from its container's start to its entrypoint.
# The package works in /run/determined, which is this task's alone.
set -e
python="${DET_PYTHON_EXECUTABLE:-python3}"
export PATH="$PYTHONUSERBASE/bin:$PATH"
mkdir -p "$DET_RUN_DIR/info" "$DET_RUN_DIR/train/logs"
# This shell becomes the trial, under the same pid: what remote ranks write here is in the trial's log.
ln -sf "/proc/$$/fd/1" "$DET_RUN_DIR/train/logs/stdout.log"
ln -sf "/proc/$$/fd/2" "$DET_RUN_DIR/train/logs/stderr.log"
"$python" -m determined.exec.prep_container --download_context_directory --resources --proxy
if [ -f startup-hook.sh ]; then
    . ./startup-hook.sh
fi
"$python" -m determined.exec.prep_container --rendezvous
exec "$python" -m determined.exec.launch
