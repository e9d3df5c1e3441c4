"""A trial that does nothing but report metrics, as fast as it is answered. Runs as a task; the standard library only.

It connects to the benchmark, says which trial it is, and then carries out one order a line: report for some seconds to
a server (Detlab with this task's own token, or MLflow), each report acknowledged before the next is sent. It answers
with the latencies. Both servers get the same three metrics and the same HTTP client.
"""

import http.client
import json
import os
import socket
import time
from typing import Any

HEADERS = {"Content-Type": "application/json"}


def metrics(step: int) -> dict[str, float]:
    return {"loss": 1.0 / step, "accuracy": 1.0 - 1.0 / (step + 1), "batches": float(step)}


class Detlab:
    def __init__(self) -> None:
        self.trial, self.run = int(os.environ["DET_TRIAL_ID"]), int(os.environ["DET_TRIAL_RUN_ID"])
        self.path = f"/api/v1/trials/{self.trial}/metrics"
        self.headers = {
            **HEADERS,
            "Grpc-Metadata-x-allocation-token": f"Bearer {os.environ['DET_SESSION_TOKEN']}",
        }

    def body(self, step: int) -> dict[str, Any]:
        report = {"trialId": self.trial, "trialRunId": self.run, "stepsCompleted": step}
        return {"group": "training", "metrics": {**report, "metrics": {"avgMetrics": metrics(step)}}}


class MLflow:
    path = "/api/2.0/mlflow/runs/log-batch"
    headers = HEADERS

    def __init__(self, run: str) -> None:
        self.run = run

    def body(self, step: int) -> dict[str, Any]:
        now = int(1000 * time.time())
        values = [
            {"key": name, "value": value, "timestamp": now, "step": step}
            for name, value in metrics(step).items()
        ]
        return {"run_id": self.run, "metrics": values}


def report(order: dict[str, Any], first_step: int) -> dict[str, Any]:
    """The seconds that it took, the latencies in milliseconds of acknowledged reports, and how many were refused."""
    target = Detlab() if order["target"] == "detlab" else MLflow(order["run"])
    connection = http.client.HTTPConnection(order["host"], order["port"], timeout=60)
    latencies: list[float] = []
    refused: list[str] = []
    start = time.perf_counter()
    while (begun := time.perf_counter()) < start + order["seconds"]:
        body = json.dumps(target.body(first_step + len(latencies)))
        connection.request("POST", target.path, body, target.headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            refused.append(f"{answer.status} {said.decode()}")
            continue
        latencies.append(round(1000 * (time.perf_counter() - begun), 3))
    seconds = time.perf_counter() - start
    connection.close()
    return {"seconds": seconds, "latencies": latencies, "refused": refused}


def main() -> None:
    host, port = os.environ["BENCHMARK_CONTROL"].split(":")
    steps = {"detlab": 1, "mlflow": 1}
    with socket.create_connection((host, int(port))) as control, control.makefile("rw") as lines:
        print(json.dumps({"trial": int(os.environ["DET_TRIAL_ID"])}), file=lines, flush=True)
        for line in lines:
            order = json.loads(line)
            try:
                done = report(order, steps[order["target"]])
            except Exception as error:
                print(json.dumps({"error": f"{order['target']}: {error!r}"}), file=lines, flush=True)
                raise
            steps[order["target"]] += len(done["latencies"])
            print(json.dumps(done), file=lines, flush=True)
    print("reports:", {target: step - 1 for target, step in steps.items()})


if __name__ == "__main__":
    main()
