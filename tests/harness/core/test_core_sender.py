import threading

import pytest

from determined.core._sender import ReportSender

DEADLINE = 20.0


def test_reports_are_sent_in_order_and_close_waits_for_them() -> None:
    sent: list[int] = []
    sender = ReportSender()
    sender.start()
    for i in range(500):
        sender.put(lambda i=i: sent.append(i))  # type: ignore[misc]
    sender.close()
    assert sent == list(range(500))
    with pytest.raises(RuntimeError, match="closed"):
        sender.put(lambda: None)


def test_drain_waits_for_the_report_that_is_being_sent() -> None:
    begun, go_on = threading.Event(), threading.Event()
    sent: list[str] = []

    def slow() -> None:
        begun.set()
        assert go_on.wait(DEADLINE)
        sent.append("slow")

    sender = ReportSender()
    sender.start()
    sender.put(slow)
    assert begun.wait(DEADLINE)
    threading.Timer(0.05, go_on.set).start()
    sender.drain()
    assert sent == ["slow"]
    sender.close()


def test_an_error_stops_what_comes_after_it_and_is_raised_again_and_again() -> None:
    sent: list[str] = []

    def fail() -> None:
        raise OSError("refused")

    sender = ReportSender()
    sender.put(lambda: sent.append("first"))
    sender.put(fail)
    sender.put(lambda: sent.append("second"))
    sender.start()
    for call in (sender.drain, lambda: sender.put(lambda: None), sender.close):
        with pytest.raises(OSError, match="refused"):
            call()
    assert sent == ["first"]


def test_a_full_queue_blocks_until_there_is_room() -> None:
    go_on = threading.Event()
    sender = ReportSender(capacity=2)
    sender.start()
    sent: list[int] = []

    def send(i: int) -> None:
        assert go_on.wait(DEADLINE)
        sent.append(i)

    def put_all() -> None:
        for i in range(6):
            sender.put(lambda i=i: send(i))  # type: ignore[misc]

    producer = threading.Thread(target=put_all)
    producer.start()
    producer.join(0.1)
    assert producer.is_alive()  # one is being sent, two wait, the fourth must not come in
    assert len(sender._waiting) <= 2
    go_on.set()
    producer.join(DEADLINE)
    sender.close()
    assert sent == list(range(6))
