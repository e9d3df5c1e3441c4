"""Runs in the official client's environment: workspaces and projects in the Python SDK. Prints one JSON object.

Arguments: the configuration, the model's folder.
"""

import json
import sys

from determined.common.api import errors
from determined.experimental import client

config, model = sys.argv[1:]
client.login()
workspace = client.create_workspace("from the SDK")
project = workspace.create_project("digits", description="ten of them")
experiment = client.create_experiment(config, model, project_id=project.id, template="quick")
experiment.reload()
into = [experiment.project_id == project.id, experiment.workspace_id == workspace.id]
project.set_name("numbers")
project.set_description("all of them")
project.add_note("plan", "train")
project.add_note("other", "nothing")
project.remove_note("other")
project.archive()
project.reload()
shown = [project.name, project.description, [dict(note)["name"] for note in project.notes], project.archived]
project.unarchive()
inside = [one.id for one in project.list_experiments()]
experiment.move_to_project("Uncategorized", "Uncategorized")
experiment.reload()
found = {
    "workspaces": [one.name for one in client.list_workspaces()],
    "projects": [one.name for one in workspace.list_projects()],
    "by_name": workspace.get_project("numbers").id == project.id,
    "pools": [str(getattr(pool, "name", pool)) for pool in workspace.list_pools()],
}
state = experiment.wait(interval=0.2).name
workspace.delete_project("numbers")
client.delete_workspace("from the SDK")
try:
    client.get_workspace("from the SDK")
    gone = False
except errors.NotFoundException:
    gone = True
print(
    json.dumps(
        {
            "experiment": experiment.id,
            "into": into,
            "shown": shown,
            "inside": inside,
            "found": found,
            "moved": experiment.project_id,
            "state": state,
            "restarts": experiment.config["max_restarts"],
            "gone": gone,
        }
    )
)
