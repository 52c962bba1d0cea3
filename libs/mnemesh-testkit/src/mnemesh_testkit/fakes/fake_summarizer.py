"""A summarizer of the episodic mode that follows a fixed rule."""

import re
from typing import Any


def extract_memories(text: str) -> dict[str, Any]:
    """Returns one episode, and the facts that users ask to remember, from a labelled transcript.

    "Remember: the key is red." is a fact about the key; one that is known of the same subject is contradicted, or
    confirmed by the same words. "Forget: the key is red." retracts it.
    """
    labels = re.findall(r"^\[(m\d+)", text, re.MULTILINE)
    known = dict(re.findall(r"^\[(f\d+)\] (.*)$", text, re.MULTILINE))
    facts = []
    for label, verb, said in re.findall(r"^\[(m\d+)[^\]]*\] user: .*?(Remember|Forget): (.*?\.)", text, re.MULTILINE):
        subject = said.partition(" is ")[0]
        about = next((name for name, fact in known.items() if fact.partition(" is ")[0] == subject), None)
        relation = "new" if about is None else "confirms" if known[about] == said else "contradicts"
        if verb == "Forget":
            if about is None:
                continue
            relation = "retracts"
        facts.append(
            {
                "text": said,
                "tags": ["told"],
                "confidence": 0.9,
                "salience": 0.8,
                "messages": [label],
                "relation": relation,
                "known_fact": about,
            }
        )
    episode = {
        "summary": f"They spoke of {len(labels)} things.",
        "tags": ["talk"],
        "salience": 0.5,
        "first_message": labels[0],
        "last_message": labels[-1],
    }
    return {"episodes": [episode], "facts": facts}
