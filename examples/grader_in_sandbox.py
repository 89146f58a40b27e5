"""Work that is graded by a command, in a fresh sandbox that the agent never saw.

    python examples/grader_in_sandbox.py [URL]

The agent works on files with bash. What it leaves in `out` is copied into a new sandbox, the hidden file `expected` is
put beside it, and a command compares the two.
"""

import sys

import slipstream as ss

NUMBERS = [[3, 1, 2], [10, 30, 20], [5]]

tasks = [
    ss.Task(
        id=f"sort-{place}",
        instruction="Write the numbers of data.txt to a file named out, smallest first, one a line.",
        tools=[ss.bash, ss.finish],
        files={"data.txt": "".join(f"{number}\n" for number in numbers)},
        artifact=["out"],
        grader=ss.command(
            "cmp -s out expected || exit 1",
            files={"expected": "".join(f"{number}\n" for number in sorted(numbers))},
        ),
    )
    for place, numbers in enumerate(NUMBERS)
]

if __name__ == "__main__":
    script = ss.replies(ss.act("bash", command="sort -n data.txt > out"), ss.act("finish"))
    result = ss.evaluate(tasks, model=sys.argv[1] if len(sys.argv) > 1 else script)
    print(f"mean reward {result.mean_reward:.3f}")
