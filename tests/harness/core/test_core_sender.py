import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined.core._sender import ReportSender

DEADLINE = 20.0
LONG = 1000.0  # seconds: a period that no test sees the end of


class Place:
    """Where reports are delivered to: it can be slow, and can refuse."""

    def __init__(self) -> None:
        self.deliveries: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Event()
        self.refused: int | None = None

    @property
    def arrived(self) -> list[int]:
        return [report for delivery in self.deliveries for report in delivery]

    def deliver(self, reports: Sequence[int]) -> None:
        self.begun.set()
        assert self.open.wait(DEADLINE)
        if self.refused in reports:
            raise OSError("refused")
        self.deliveries.append(list(reports))


@pytest.fixture
def place() -> Place:
    return Place()


MakeSender = Callable[..., ReportSender[int]]


@pytest.fixture
def sender_of(place: Place) -> Iterator[MakeSender]:
    """Makes senders to the place, and leaves none running."""
    made: list[ReportSender[int]] = []

    def make(**settings: float) -> ReportSender[int]:
        made.append(ReportSender(place.deliver, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    place.open.set()
    for sender in made:
        try:
            sender.close()
        except OSError:
            assert place.refused is not None


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_reports_arrive_in_order_and_close_waits_for_them(sender_of: MakeSender, place: Place) -> None:
    sender = sender_of()
    sender.start()
    for i in range(500):
        sender.put(i)
    sender.close()
    assert place.arrived == list(range(500))
    assert len(place.deliveries) < 10
    with pytest.raises(RuntimeError, match="closed"):
        sender.put(500)


def test_the_first_leaves_at_once_and_what_follows_soon_leaves_together(
    sender_of: MakeSender, place: Place
) -> None:
    sender = sender_of(period=0.2)
    sender.start()
    sender.put(0)
    wait_for(lambda: place.deliveries == [[0]])
    for i in range(1, 100):
        sender.put(i)
    wait_for(lambda: len(place.deliveries) == 2)
    assert place.deliveries[1] == list(range(1, 100))


@pytest.mark.parametrize("how", ["urgent", "drain", "close", "full"])
def test_who_waits_does_not_wait_for_the_period(sender_of: MakeSender, place: Place, how: str) -> None:
    sender = sender_of(period=LONG, capacity=3)
    sender.start()
    sender.put(0)
    wait_for(lambda: place.deliveries == [[0]])
    sender.put(1)
    match how:
        case "urgent":
            sender.put(2, urgent=True)
        case "drain":
            sender.drain()
            assert place.arrived == [0, 1]
        case "close":
            sender.close()
            assert place.arrived == [0, 1]
        case "full":
            for i in (2, 3, 4):
                sender.put(i)
    wait_for(lambda: place.arrived[:2] == [0, 1])


def test_drain_waits_for_what_is_on_its_way(sender_of: MakeSender, place: Place) -> None:
    place.open.clear()
    sender = sender_of()
    sender.start()
    sender.put(1)
    assert place.begun.wait(DEADLINE)
    threading.Timer(0.05, place.open.set).start()
    sender.drain()
    assert place.arrived == [1]


def test_an_error_stops_what_comes_after_it_and_is_raised_again_and_again(
    sender_of: MakeSender, place: Place
) -> None:
    place.refused = 2
    sender = sender_of()
    sender.put(1)
    sender.start()
    wait_for(lambda: place.arrived == [1])
    sender.put(2)
    sender.put(3)
    for call in (sender.drain, lambda: sender.put(4), sender.close):
        with pytest.raises(OSError, match="refused"):
            call()
    assert place.arrived == [1]


def test_a_full_queue_blocks_until_there_is_room(sender_of: MakeSender, place: Place) -> None:
    place.open.clear()
    sender = sender_of(capacity=2)
    sender.start()
    sender.put(0)
    assert place.begun.wait(DEADLINE)

    def put_all() -> None:
        for i in range(1, 6):
            sender.put(i)

    producer = threading.Thread(target=put_all)
    producer.start()
    producer.join(0.1)
    assert producer.is_alive()  # one is on its way, two wait, the fourth must not come in
    assert len(sender._waiting) == 2
    place.open.set()
    producer.join(DEADLINE)
    sender.close()
    assert place.arrived == list(range(6))


def test_a_report_waits_for_no_slow_master(sender_of: MakeSender, place: Place) -> None:
    place.open.clear()
    sender = sender_of()
    sender.start()
    began = time.monotonic()
    for i in range(900):
        sender.put(i)
    assert time.monotonic() - began < 1  # some microseconds each; a wait for the master would be for ever
    assert place.arrived == []


@given(
    st.lists(st.sampled_from(["put", "urgent", "drain", "pause"]), max_size=40), st.sampled_from([0.0, 0.01])
)
@settings(max_examples=40, deadline=None)
def test_whatever_is_called_when_each_report_arrives_once_and_in_order(
    calls: list[str], period: float
) -> None:
    place = Place()
    sender = ReportSender(place.deliver, period=period, capacity=5)
    sender.start()
    put = 0
    for call in calls:
        match call:
            case "drain":
                sender.drain()
                assert place.arrived == list(range(put))
            case "pause":
                time.sleep(0.001)
            case _:
                sender.put(put, urgent=call == "urgent")
                put += 1
    sender.close()
    assert place.arrived == list(range(put))
