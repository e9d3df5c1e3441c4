"""Every command and flag of the official `det` in tier T1, and the test that drives it against a real cluster.

A line is a command, its items (`.` the command itself, a flag, `@name` an alias) and a test of test_official_*.py that
calls `det` with them and checks what it says. test_commands.py compares this with the client's own help, in both
directions; after the tests of a file have passed, conftest.py compares it with what they have called.
"""

from __future__ import annotations

from collections.abc import Mapping

# The trees that belong to T1: all that is below, and the flags above.
T1 = (
    "auth",
    "checkpoint",
    "experiment",
    "master info",
    "preview-search",
    "trial",
    "user login",
    "user logout",
    "user whoami",
    "version",
)

_TABLE = """
det | . --master --user --version | flags::test_master_and_user_before_the_command
auth | . | flags::test_a_group_without_a_verb
auth list-providers | . | flags::test_no_single_sign_on
auth login | . --headless --provider | flags::test_no_single_sign_on
checkpoint | . @c | flags::test_a_group_without_a_verb
checkpoint delete | . --yes | retention::test_downloads_and_removals
checkpoint describe | . | cli::test_checkpoints
checkpoint download | . --output-dir --quiet | flags::test_downloads
checkpoint download | --mode | cli::test_checkpoints
checkpoint rm | . --glob --yes | retention::test_downloads_and_removals
experiment | . | flags::test_a_group_without_a_verb
experiment | @e | flags::test_a_test_run
experiment activate | . @unpause | experiments::test_verbs_may_be_repeated
experiment archive | . | cli::test_edits
experiment cancel | . | cli::test_pause_activate_cancel
experiment config | . | cli::test_config_and_model_definition
experiment continue | . --config --follow-first-trial | flags::test_continue_and_follow
experiment continue | --config-file | experiments::test_continue
experiment create | . --config --paused | flags::test_overrides
experiment create | --test-mode | flags::test_a_test_run
experiment create | --project_id | workspaces::test_projects
experiment create | --template | workspaces::test_templates
experiment create | --include --follow-first-trial | flags::test_includes
experiment delete | . --yes | cli::test_kill
experiment delete-tb-files | . | retention::test_downloads_and_removals
experiment describe | . --csv --json --metrics --outdir | experiments::test_describe
experiment download | . --output-dir --smaller-is-better --sort-by --top-n | flags::test_downloads
experiment download | --quiet | cli::test_checkpoints
experiment download-model-def | . --output-dir | flags::test_what_is_sent
experiment kill | . | flags::test_overrides
experiment label | . | flags::test_a_group_without_a_verb
experiment label add | . | cli::test_edits
experiment label remove | . | cli::test_edits
experiment list | . --csv --limit --offset --pages | experiments::test_list_pages
experiment list | @ls | flags::test_lists
experiment list | --all | cli::test_edits
experiment list | --show_project | cli::test_list
experiment list-checkpoints | . --best --csv @lc | flags::test_lists
experiment list-trials | . --csv --limit --pages @lt | experiments::test_list_trials
experiment list-trials | --offset | flags::test_lists
experiment logs | . --agent-id --container-id --follow --head --json --level --rank-id --source --stdtype --tail --timestamp-after --timestamp-before | logs::test_every_flag_that_selects_lines[experiment]
experiment move | . | workspaces::test_projects
experiment pause | . | cli::test_pause_activate_cancel
experiment set | . | flags::test_a_group_without_a_verb
experiment set description | . | cli::test_edits
experiment set gc-policy | . --save-experiment-best --save-trial-best --save-trial-latest --yes | retention::test_set_gc_policy
experiment set log-retention | . --days --forever | logs::test_retention
experiment set max-slots | . | experiments::test_max_slots_has_effect_at_once
experiment set name | . | cli::test_edits
experiment set priority | . | experiments::test_set
experiment set weight | . | experiments::test_set
experiment unarchive | . | cli::test_edits
experiment wait | . --polling-interval | cli::test_pause_activate_cancel
master | . | logs::test_the_masters_log
master info | . --json --yaml | flags::test_master_info
preview-search | . | cli::test_preview_search
trial | . @t | flags::test_a_group_without_a_verb
trial describe | . --csv --limit --offset --pages | flags::test_pages_of_workloads
trial describe | --json --metrics --metrics-summary | logs::test_describe_and_kill
trial download | . --best --output-dir --smaller-is-better --sort-by | flags::test_downloads
trial download | --latest --quiet | retention::test_downloads_and_removals
trial kill | . | cli::test_kill
trial logs | . --agent-id --container-id --follow --head --json --level --rank-id --source --stdtype --tail --timestamp-after --timestamp-before | logs::test_every_flag_that_selects_lines[trial]
trial set | . | flags::test_a_group_without_a_verb
trial set log-retention | . --forever | flags::test_retention_of_a_trial
trial set log-retention | --days | logs::test_retention
trial support-bundle | . --output-dir | logs::test_support_bundle
user | . @u | flags::test_a_group_without_a_verb
user login | . | flags::test_logout_of_everybody
user logout | . --all | flags::test_logout_of_everybody
user whoami | . | flags::test_logout_of_everybody
version | . | flags::test_version
"""

# Not driven, and why.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    (
        "experiment create",
        "--local",
    ): "deprecated; runs the model's code in the client's process and asks no master",
    (
        "experiment create",
        "--publish",
    ): "tunnels to a task's port through the master's /proxy/, which comes with"
    " notebooks and TensorBoards; until then the client makes the experiment and every connection is refused",
    ("trial download", "--uuid"): "the client's own check refuses it (rest-api.md 4.6)",
}

# Not in our own `det`, and why.
OURS_LACKS: Mapping[tuple[str, str], str] = {
    ("auth", ""): "single sign-on: no master of ours has providers",
    ("auth list-providers", ""): "single sign-on",
    ("auth login", ""): "single sign-on",
    ("auth login", "--headless"): "single sign-on",
    ("auth login", "--provider"): "single sign-on",
    ("experiment create", "--local"): "deprecated; `python3 train.py` runs off the cluster as it is",
    ("experiment create", "--publish"): "comes with the master's /proxy/",
}


def _rows() -> dict[tuple[str, str], tuple[str, str]]:
    """(command, item) -> (file, test)."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for line in _TABLE.strip().splitlines():
        command, items, where = (part.strip() for part in line.split("|"))
        file, _, test = where.partition("::")
        for item in items.split():
            key = ("" if command == "det" else command, "" if item == "." else item)
            assert key not in found, f"{key} is there twice"
            found[key] = (f"test_official_{file}", test)
    return found


ROWS: Mapping[tuple[str, str], tuple[str, str]] = _rows()
