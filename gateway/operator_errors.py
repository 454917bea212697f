"""What an operator is told when something that was asked for can't be. Pure."""


class OperationError(Exception):
    """The operator asked for something that can't be; `status` is the HTTP status it maps to, `param` the field."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
