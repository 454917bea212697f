"""The refusals that happen on a request's way, each with its status, machine word and text in one place. Pure."""

import math

from gateway.api import Refusal


def n_too_large(limit: int) -> Refusal:
    """Too many answers asked for at once."""
    return Refusal(400, "n_too_large", f"n and best_of may be at most {limit}.", param="n")


def encoded_body() -> Refusal:
    """Its body is compressed, or said to be: it cannot be read here, and engines do not agree on what they make of it."""
    return Refusal(415, "content_encoding", "A request body must come as it is, without Content-Encoding.")


def concurrency_limit() -> Refusal:
    """The key's own limit."""
    return Refusal(429, "concurrency_limit", "This key has all the requests it may have at once.", retry_after_s=1)


def rate_limit(what: str, wait_s: int) -> Refusal:
    """The key's requests or tokens per minute."""
    message = f"This key has used up its {what} per minute; one such request fits again in {wait_s} s."
    return Refusal(429, f"{what}_per_min", message, retry_after_s=wait_s)


def would_wait(wait_s: float) -> Refusal:
    """It asked to be admitted now or not at all."""
    return _with_wait(Refusal(429, "would_wait", "No backend is free now, and the request is not to wait."), wait_s)


def out_of_budget(wait_s: float) -> Refusal:
    """Its class or it itself is strict, and it cannot be in time any more."""
    message = "The request cannot be answered within what it was promised."
    return _with_wait(Refusal(503, "out_of_budget", message), wait_s)


def _with_wait(refusal: Refusal, wait_s: float) -> Refusal:
    refusal.wait_s = wait_s
    refusal.retry_after_s = max(1, round(wait_s))
    return refusal


def no_backend(model: str, wait_s: int) -> Refusal:
    """Nobody who serves the model is up."""
    return Refusal(503, "no_backend", f"No backend for {model!r} is available.", retry_after_s=wait_s)


def not_loaded(model: str, wait_s: float) -> Refusal:
    """Its model shares a device and lies on none, and cannot be there before the request must have begun."""
    message = f"The model {model!r} is not loaded; it is expected in {max(1, round(wait_s))} s."
    return _with_wait(Refusal(503, "model_not_loaded", message), math.ceil(wait_s))


def wrong_kind(model: str) -> Refusal:
    """Somebody serves the model, but not for this route: an embedding model asked to chat."""
    return Refusal(404, "model_not_for_route", f"The model {model!r} is served here, but not for this route.", param="model")


def queue_timeout(wait_s: float) -> Refusal:
    """It waited as long as it may."""
    return _with_wait(Refusal(503, "queue_timeout", "No backend became free in time."), wait_s)


def connect_failed() -> Refusal:
    """The attempt got no connection; it did not run."""
    return Refusal(502, "connect_failed", "No connection to the backend could be made.")


def loops() -> Refusal:
    """It has been here before."""
    message = "This request has come through this gateway before: one of the gateway's backends leads back to it."
    return Refusal(508, "loop", message)


def breaks_backends() -> Refusal:
    """The poison rule."""
    message = "This request made several backends drop the connection; it is not sent to more of them for now."
    return Refusal(502, "request_breaks_backends", message, may_have_run=True)


def backend_lost(malformed: bool) -> Refusal:
    """The backend read the request and gave nothing that can be used."""
    message = "The backend closed the connection without an answer; the request may be the cause, and may have run."
    if malformed:
        message = "The backend sent a malformed answer."
    return Refusal(502, "backend_lost", message, may_have_run=True)


def redirected() -> Refusal:
    """Redirects are not followed, and their targets not told."""
    return Refusal(502, "backend_redirected", "The backend answered with a redirect.", may_have_run=True)


_TOO_LATE = {
    "first byte": ("first_byte_timeout", "The backend gave no answer in time."),
    "silent": ("idle_timeout", "The backend went silent in the middle of its answer."),
    "total": ("total_timeout", "The request took longer than the total limit."),
}


def too_late(limit: str) -> Refusal:
    """A limit of a request at a backend has passed (see patience)."""
    code, message = _TOO_LATE[limit]
    return Refusal(504, code, message, may_have_run=True)


def shutting_down(may_have_run: bool) -> Refusal:
    """The drain limit is over."""
    return Refusal(503, "shutting_down", "The gateway is shutting down.", retry_after_s=1, may_have_run=may_have_run)
