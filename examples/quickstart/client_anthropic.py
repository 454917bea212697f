"""The same with Anthropic's client: pip install anthropic; python client_anthropic.py [PROMPT]"""

import os
import sys

import anthropic


def main() -> None:
    """Ask the first model that the gateway lists, over /v1/messages, and show its answer as it comes."""
    prompt = " ".join(sys.argv[1:]) or "Tell me a story in three sentences."
    client = anthropic.Anthropic(
        base_url=os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:8080"),  # without /v1: this client adds it
        api_key=os.environ.get("ANTHROPIC_API_KEY", "none"),
    )
    model = client.get("/v1/models", cast_to=object)["data"][0]["id"]  # type: ignore[index]
    with client.messages.stream(model=model, max_tokens=128, messages=[{"role": "user", "content": prompt}]) as stream:
        for text in stream.text_stream:
            sys.stdout.write(text)
            sys.stdout.flush()
        usage = stream.get_final_message().usage
    sys.stdout.write(f"\n({model}: {usage.input_tokens} + {usage.output_tokens} tokens)\n")


if __name__ == "__main__":
    main()
