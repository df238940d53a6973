"""Draw the pictures of README, docs and notebooks, as SVG for light and dark pages."""

from __future__ import annotations

from pathlib import Path

from scripts.rooms import rooms
from scripts.svg import arrow, box, kill, picture, text

ASSETS = Path(__file__).parent.parent / "docs/assets"


def architecture() -> str:
    """Draw a queue, a reader task, the journal, and the rows for Spark."""
    return picture(
        "architecture",
        860,
        330,
        "Executors claim messages, write them to the journal, acknowledge them, and yield rows",
        [
            box(24, 92, 170, 96, "plain", "Queue", "Redis, SQL, RabbitMQ,", "SQS, Pulsar, …"),
            box(330, 92, 200, 96, "blue", "Reader tasks", "on Spark's executors"),
            box(686, 92, 150, 96, "green", "Rows", "for Spark, typed"),
            box(330, 244, 200, 62, "amber", "Journal", "storage that all hosts share"),
            arrow("M194 118 H324"),
            text(259, 108, "1  claim", "middle"),
            arrow("M330 162 H200"),
            text(265, 182, "3  acknowledge", "middle"),
            arrow("M398 188 V238"),
            text(388, 220, "2  write", "end"),
            arrow("M462 244 V194", "dashed"),
            text(474, 220, "a retry, a restart or a second action reads from here", "faint"),
            arrow("M530 140 H680"),
            text(605, 130, "4  yield", "middle"),
            box(330, 20, 200, 44, "plain", "Driver"),
            arrow("M430 64 V86"),
            text(546, 38, "polls the backlog, and plans each batch:", "faint"),
            text(546, 56, "which queues, how many tasks", "faint"),
            text(24, 224, "A claim without an acknowledge", "faint"),
            text(24, 242, "lapses: the broker delivers the", "faint"),
            text(24, 260, "messages again.", "faint"),
        ],
    )


CRASHES = (
    ("before the claim", "nothing happened", "the retry claims"),
    ("after the claim", "claims lapse", "the messages are read once"),
    ("after the journal", "the segment stays", "the retry yields its rows and acknowledges"),
    ("after the acknowledge", "the segment stays", "the retry yields its rows"),
)


def crashes() -> str:
    """Draw the steps of a reader task, and what a kill between them leaves."""
    steps = (
        ("claim", "messages", "blue"),
        ("write", "the journal", "amber"),
        ("acknowledge", "the messages", "plain"),
        ("yield", "rows to Spark", "green"),
    )
    parts = [text(24, 36, "The steps of a reader task, and a kill -9 before each", "title")]
    for number, (step, what, kind) in enumerate(steps):
        x = 64 + 204 * number
        parts += [box(x, 56, 140, 56, kind, step, what)]
        parts += [
            arrow(f"M{x - 54} 84 H{x - 6}"),
            kill(x - 32, 84),
            text(x - 32, 66, str(number + 1), "red middle"),
        ]
    for number, (point, leaves, then) in enumerate(CRASHES):
        y = 156 + 32 * number
        parts += [text(32, y, str(number + 1), "red middle"), text(52, y, point, "title")]
        parts += [text(270, y, leaves), text(440, y, then)]
    parts += [
        text(
            52,
            284,
            "Nothing is lost. Tests kill real processes there, on each broker with a journal.",
            "faint",
        )
    ]
    return picture("crashes", 860, 306, "What a kill leaves before each step of a reader task", parts)


def quickstart() -> str:
    """Draw the notebook's way: two writers, a queue in a file, a stream, a lake and a dead-letter queue."""
    return picture(
        "quickstart",
        860,
        246,
        "Orders and bad bytes go to a queue in a file; the stream writes orders to Parquet and the rest to a "
        "dead-letter queue",
        [
            box(24, 30, 170, 60, "blue", "df.write", "1,000 orders"),
            box(24, 156, 170, 60, "plain", "another program", "2 bad messages"),
            box(266, 86, 140, 74, "plain", "queue orders", "a SQLite file"),
            box(466, 86, 150, 74, "amber", "stream", "with its journal"),
            box(656, 30, 180, 60, "green", "Parquet", "typed orders"),
            box(656, 156, 180, 60, "plain", "queue orders.dlq", "bytes and reason"),
            arrow("M194 60 C240 60 226 108 260 108"),
            arrow("M194 186 C240 186 226 138 260 138"),
            arrow("M406 123 H460"),
            arrow("M616 110 C644 110 628 60 650 60"),
            arrow("M616 136 C644 136 628 186 650 186"),
        ],
    )


def databricks() -> str:
    """Where everything lies on Databricks."""
    return picture(
        "databricks",
        860,
        290,
        "Journal and checkpoint lie in a Volume, the broker's URL in a secret scope, rows in a table",
        [
            box(24, 60, 150, 74, "plain", "Broker", "the queue orders"),
            box(
                262,
                30,
                336,
                134,
                "blue",
                "Job on a schedule",
                "trigger(availableNow=True)",
                "driver and executors",
            ),
            box(686, 60, 150, 74, "green", "Table", "main.shop.orders"),
            box(262, 222, 150, 50, "plain", "Secret scope"),
            box(448, 222, 150, 50, "amber", "Volume"),
            arrow("M262 97 H180"),
            arrow("M598 97 H680"),
            arrow("M337 222 V170"),
            text(327, 200, "the broker's URL", "faint end"),
            arrow("M523 164 V216"),
            text(535, 200, "journal and checkpoint", "faint"),
            text(218, 87, "claims", "faint middle"),
            text(639, 87, "appends", "faint middle"),
        ],
    )


PICTURES = {
    "rooms": rooms,
    "architecture": architecture,
    "crashes": crashes,
    "quickstart": quickstart,
    "databricks": databricks,
}


def main() -> None:
    """Write the pictures."""
    for name, draw in PICTURES.items():
        (ASSETS / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
