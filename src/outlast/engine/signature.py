"""What a registered function takes: its arguments checked and converted once, at the edge, by its type
hints."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import pydantic
from pydantic import ConfigDict, TypeAdapter, create_model

from outlast.core import values
from outlast.core.record import record
from outlast.errors import ConfigurationError, InvalidInput


def pointer(location: tuple[int | str, ...]) -> str:
    """Write a pydantic error location as an RFC 6901 pointer."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


@record
class Signature:
    """The parameters of a function after those that Outlast passes itself, and its result type."""

    owner: str
    names: tuple[str, ...]
    model: type[pydantic.BaseModel]
    returns: TypeAdapter[Any] | None

    @classmethod
    def of(cls, function: Callable[..., Any], *, skip: int, owner: str) -> Signature:
        """Read a function's signature, leaving out its first ``skip`` parameters.

        Raises ConfigurationError for ``*args`` and for hints that cannot be resolved or checked.
        """
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception as error:  # any name error or broken annotation of the user's module
            raise ConfigurationError(f"{owner}: its type hints cannot be read: {error}") from error
        parameters = list(inspect.signature(function).parameters.values())
        if len(parameters) < skip or any(p.kind is p.KEYWORD_ONLY for p in parameters[:skip]):
            raise ConfigurationError(
                f"{owner} must take {skip} positional parameter(s) first: see the documentation"
            )
        fields: dict[str, Any] = {}
        extra: Any = "forbid"
        for parameter in parameters[skip:]:
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise ConfigurationError(f"{owner}: *{parameter.name} has no name to store its values under")
            if parameter.kind is parameter.VAR_KEYWORD:
                extra = "allow"
                continue
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
        try:
            model = create_model(
                "Arguments",
                __config__=ConfigDict(extra=extra, arbitrary_types_allowed=False, protected_namespaces=()),
                **fields,
            )
            returned = hints.get("return", Any)
            returns = None if returned in (Any, None, type(None), dict, list) else TypeAdapter(returned)
        except Exception as error:  # pydantic raises several kinds for types that it cannot check
            raise ConfigurationError(f"{owner}: its parameters cannot be checked: {error}") from error
        return cls(owner=owner, names=tuple(fields), model=model, returns=returns)

    def bind(self, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Check and convert arguments given by position and name; answer them by name, typed.

        Raises InvalidInput with a pointer for every problem.
        """
        if not arguments:
            return self.check(named)
        if len(arguments) > len(self.names):
            raise InvalidInput(f"{self.owner} takes {len(self.names)} arguments, not {len(arguments)}")
        given = dict(zip(self.names, arguments, strict=False))
        twice = [name for name in named if name in given]
        if twice:
            raise InvalidInput(
                f"{self.owner}: {twice[0]} is given twice", problems=((f"/{twice[0]}", "given twice"),)
            )
        given.update(named)
        return self.check(given)

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check and convert arguments by name. Raises InvalidInput with a pointer for every problem."""
        try:
            # What model_validate calls itself; this is asked for every call.
            checked = self.model.__pydantic_validator__.validate_python(given)
        except pydantic.ValidationError as error:
            problems = tuple(
                (pointer(item["loc"]), item["msg"])
                for item in error.errors(include_url=False, include_context=False, include_input=False)
            )
            text = "; ".join(f"{where or '/'}: {what}" for where, what in problems[:5])
            raise InvalidInput(f"{self.owner} does not take this input: {text}", problems=problems) from None
        typed = dict(checked.__dict__)
        if checked.__pydantic_extra__:
            typed.update(checked.__pydantic_extra__)
        return typed

    def plain(self, typed: Mapping[str, Any]) -> Any:
        """Answer typed arguments as plain JSON values, as they are stored and fingerprinted."""
        return values.normalise(dict(typed))

    def restore(self, result: Any) -> Any:
        """Give a stored plain result the type that the function declares, where it declares one."""
        if self.returns is None or result is None:
            return result
        return self.returns.validator.validate_python(result)
