"""Stream one chat answer through the gateway with OpenAI's client: pip install openai; python client.py [PROMPT]"""

import os
import sys

import openai


def main() -> None:
    """Ask the first model that the gateway lists, and show its answer as it comes."""
    prompt = " ".join(sys.argv[1:]) or "Tell me a story in three sentences."
    client = openai.OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),  # any text, unless gateway.toml has [[keys]]
    )
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=128,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            sys.stdout.write(chunk.choices[0].delta.content or "")
            sys.stdout.flush()
        elif chunk.usage is not None:
            sys.stdout.write(f"\n({model}: {chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens)\n")


if __name__ == "__main__":
    main()
