"""Schemas for check_samples.py: random ones, and those that tools write."""
import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

FORMATS = ["date", "time", "date-time", "duration", "email", "idn-email", "hostname", "ipv4",
           "ipv6", "uuid", "uri", "uri-reference", "iri", "iri-reference", "json-pointer"]
WORDS = ["a", "b", "key", "x y", "é", "value_1", "kind"]


class Maker:
    """One random schema; what it says is always enforceable, or is refused by name."""

    def __init__(self, rng):
        self.rng = rng
        self.definitions = {}

    def whole(self):
        schema = self.schema(3)
        if isinstance(schema, dict) and self.definitions:
            schema["$defs"] = self.definitions
        return schema

    def chance(self, p):
        return self.rng.random() < p

    def string(self):
        out = {"type": "string"}
        if self.chance(0.2):
            out["format"] = self.rng.choice(FORMATS + ["password", "binary", "phone"])
        elif self.chance(0.3):
            out["pattern"] = self.rng.choice(["^[a-z]+$", "^a?b{2,}c?$", "^(x|yy)*$", "^.{2,5}$",
                                              "^[A-Z]{3}-\\d{2,4}(-[a-z])?$"])
        elif self.chance(0.5):
            low = self.rng.randint(0, 5)
            out["minLength"] = low
            if self.chance(0.7):
                out["maxLength"] = low + self.rng.choice([0, 1, 3, 200])
        return out

    def bound(self):
        return self.rng.choice([0, 1, -1, 5, 10, 99, 100, -100, 1000, 12345, -7, 2**31 - 1, -2**31,
                                2**53 - 1, 1 - 2**53, 2**63 - 1, -2**63])

    def number(self):
        whole = self.chance(0.5)
        out = {"type": "integer" if whole else "number"}
        if not whole and self.chance(0.2):
            out["multipleOf"] = 1
        reals = [0, 1, -1, 0.5, -0.25, 3.14, 100, 0.001, -99.9, 1e6, 12.5, 7]
        low, high = sorted([self.bound() if whole else self.rng.choice(reals) for _ in range(2)])
        if self.chance(0.5):
            out[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.5):
            out[self.rng.choice(["maximum", "exclusiveMaximum"])] = high
        return out

    def literal(self):
        return self.rng.choice(["a", "b c", "é\"\\\n", 1, 2.5, True, None, [], [1, "x"], {"k": 1},
                                10**12, -3, 1.0, ""])

    def values(self):
        if self.chance(0.3):
            return {"const": self.literal()}
        out = {"enum": [self.literal() for _ in range(self.rng.randint(1, 4))]}
        if self.chance(0.3):
            out["type"] = ["string", "null", "integer"]
        return out

    def array(self, depth):
        out = {"type": "array"}
        if self.chance(0.8):
            out["items"] = self.schema(depth - 1)
        if self.chance(0.2):
            out["prefixItems"] = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]
        if self.chance(0.4):
            out["minItems"] = self.rng.randint(0, 3)
        if self.chance(0.4):
            out["maxItems"] = out.get("minItems", 0) + self.rng.randint(0, 3)
        if self.chance(0.1):
            out["uniqueItems"] = False
        return out

    def object(self, depth):
        out = {"type": "object"}
        names = self.rng.sample(WORDS, self.rng.randint(0, 4))
        if names or self.chance(0.5):
            out["properties"] = {name: self.schema(depth - 1) for name in names}
        if self.chance(0.6):
            out["required"] = [name for name in names if self.chance(0.6)]
            if self.chance(0.1):
                out["required"].append("extra")
        if self.chance(0.4):
            out["additionalProperties"] = self.rng.choice([False, True, {"type": "integer"},
                                                           {"type": "string", "maxLength": 2}])
        if self.chance(0.05):
            return {"type": "object", "patternProperties": {"^[a-f]{1,3}$": self.schema(depth - 1)}}
        if self.chance(0.05):
            out["propertyNames"] = {"type": "string"}
        if self.chance(0.1):
            out["minProperties"] = len(out.get("required", []))
        if self.chance(0.05):
            out["unevaluatedProperties"] = False
        return out

    def joined(self, depth):
        kind = self.rng.randint(0, 4)
        if kind == 0:
            return {"allOf": [self.object(depth - 1), self.object(depth - 1)]}
        if kind == 1:
            base = self.object(depth - 1)
            base["anyOf"] = [{"required": [self.rng.choice(WORDS)]} for _ in range(2)]
            return base
        if kind == 2:
            return {"type": ["string", "integer"], "minimum": 3, "maxLength": 4,
                    "allOf": [{"minLength": 1}, {"maximum": 70}]}
        if kind == 3:
            return {"allOf": [self.number(), self.number()]}
        return {"$ref": self.define(depth - 1), "description": "beside",
                "minLength": self.rng.randint(0, 2)}

    def define(self, depth):
        name = "D%d" % len(self.definitions)
        self.definitions[name] = True
        self.definitions[name] = self.schema(depth)
        return "#/$defs/" + name

    def schema(self, depth):
        if depth <= 0:
            return self.rng.choice([self.string, self.number, self.values])()
        roll = self.rng.random()
        if roll < 0.3:
            out = self.object(depth)
        elif roll < 0.4:
            out = self.array(depth)
        elif roll < 0.5:
            out = self.string()
        elif roll < 0.6:
            out = self.number()
        elif roll < 0.66:
            out = self.values()
        elif roll < 0.72:
            out = {"anyOf": [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]}
        elif roll < 0.78:
            out = {"oneOf": [self.string(), self.number(), {"type": "null"}]}
        elif roll < 0.84:
            out = self.joined(depth)
        elif roll < 0.9:
            out = {"$ref": self.define(depth - 1)}
        elif roll < 0.94:
            out = {"type": self.rng.sample(["string", "integer", "null", "boolean", "array",
                                            "object"], 2)}
        elif roll < 0.96:
            out = {}
        else:
            out = {"type": self.rng.choice(["boolean", "null"])}
        if self.chance(0.2):
            out["title"] = "T"
        if self.chance(0.1):
            out["x-vendor"] = {"a": 1}
        return out


def random_schema(rng):
    return Maker(rng).whole()


def of_pydantic():
    from pydantic import (AnyUrl, BaseModel, ConfigDict, EmailStr, Field, HttpUrl, IPvAnyAddress,
                          NonNegativeInt, RootModel, conint, conlist, constr)
    from pydantic.types import StrictInt

    class Color(enum.Enum):
        RED = "red"
        GREEN = "green"

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    class Cat(BaseModel):
        kind: Literal["cat"]
        lives: int = Field(9, ge=0, le=9)

    class Dog(BaseModel):
        kind: Literal["dog"]
        name: constr(min_length=1, max_length=20)

    class Address(BaseModel):
        """Where."""
        street: str = Field(..., description="with number", examples=["Main 1"])
        zip_code: constr(pattern=r"^\d{5}(-\d{4})?$")

    class Person(BaseModel):
        model_config = ConfigDict(extra="forbid", title="Someone")
        name: str
        born: date
        seen: Optional[datetime] = None
        at: time
        took: timedelta
        id: UUID
        color: Color = Color.RED
        level: Level
        home: Address
        other: list[Address] = []
        pet: Annotated[Union[Cat, Dog], Field(discriminator="kind")]
        score: float = Field(..., gt=0, lt=1)
        pair: tuple[int, str]
        counts: dict[str, int] = {}
        anything: Any = None
        flag: bool | None = None

    class Node(BaseModel):
        value: int
        children: list["Node"] = Field([], max_length=3)

    class Web(BaseModel):
        url: HttpUrl
        any_url: AnyUrl
        address: IPvAnyAddress
        raw: bytes = b""

    class Numbers(BaseModel):
        positive: NonNegativeInt
        strict: StrictInt
        ranged: conint(ge=-5, lt=10)
        some: conlist(int, min_length=1, max_length=4)
        half: Annotated[float, Field(ge=0.5)]

    class Empty(BaseModel):
        pass

    class Many(RootModel[list[Union[int, str, None]]]):
        pass

    class Nested(BaseModel):
        by_name: dict[str, Address]
        choice: Union[Literal["a", "b"], int, Address]

    models = [Cat, Dog, Address, Person, Node, Web, Numbers, Empty, Many, Nested]
    return [model.model_json_schema() for model in models]


# As zod, OpenAPI, MCP servers, Rust's schemars and OpenAI's and Google's tools write them.
WRITTEN = r"""[
{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {
  "name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "exclusiveMinimum": 0},
  "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1},
  "email": {"type": "string", "format": "email"},
  "when": {"type": "string", "format": "date-time"}},
  "required": ["name", "age"], "additionalProperties": false},
{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {
  "n": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991},
  "kind": {"anyOf": [{"type": "string", "const": "a"}, {"type": "string", "const": "b"}]},
  "map": {"type": "object", "propertyNames": {"type": "string"},
          "additionalProperties": {"type": "number"}},
  "of": {"type": "object", "propertyNames": {"enum": ["l", "r"]},
         "additionalProperties": {"type": "boolean"}, "required": ["l", "r"]},
  "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]}},
  "required": ["n", "kind", "map", "of", "pair"], "additionalProperties": false},
{"type": "object", "properties": {"p": {"discriminator": {"propertyName": "k"}, "oneOf": [
  {"type": "object", "properties": {"k": {"const": "a", "type": "string"}}, "required": ["k"]},
  {"type": "object", "properties": {"k": {"const": "b", "type": "string"},
   "v": {"type": "integer", "format": "int64"}}, "required": ["k", "v"]}]}}, "required": ["p"]},
{"$schema": "http://json-schema.org/draft-04/schema#",
 "components": {"schemas": {"Base": {"type": "object", "properties": {"id": {"type": "string",
  "format": "uuid", "readOnly": true, "example": "x"}}, "required": ["id"]}}},
  "allOf": [{"$ref": "#/components/schemas/Base"}, {"type": "object", "properties": {
  "size": {"type": "number", "format": "double", "minimum": 0, "maximum": 1e300},
  "blob": {"type": "string", "format": "byte", "contentEncoding": "base64"},
  "secret": {"type": "string", "format": "password", "minLength": 0},
  "count": {"type": "integer", "format": "int32", "minimum": 0, "exclusiveMinimum": false,
            "multipleOf": 1}},
  "required": ["size"]}], "xml": {"name": "b"}, "externalDocs": {"url": "u"}},
{"type": "object", "title": "read_fileArguments", "properties": {"path": {"title": "Path",
  "type": "string"}, "head": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null,
  "title": "Head"}}, "required": ["path"]},
{"type": "object", "properties": {}, "$schema": "http://json-schema.org/draft-07/schema#"},
{"type": "object"},
{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Args", "type": "object",
 "required": ["size"], "properties": {"size": {"type": "integer", "format": "uint64",
 "minimum": 0.0}, "mode": {"default": "fast", "allOf": [{"$ref": "#/definitions/Mode"}]},
 "opt": {"anyOf": [{"$ref": "#/definitions/Mode"}, {"type": "null"}]},
 "f": {"type": ["number", "null"], "format": "float"}},
 "definitions": {"Mode": {"oneOf": [{"description": "Fast.", "type": "string", "enum": ["fast"]},
 {"description": "Slow.", "type": "string", "enum": ["slow"]}]}}},
{"type": "object", "strict": true, "propertyOrdering": ["b", "a"], "properties": {
 "a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "array", "uniqueItems": false,
 "items": {"$ref": "#/$defs/S"}}}, "required": ["a", "b"], "additionalProperties": false,
 "$defs": {"S": {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"],
 "additionalProperties": false}}},
{"properties": {"q": {"type": "string"}}, "required": ["q"]},
{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {
 "t": {"type": ["string", "number", "boolean", "null"]},
 "list": {"type": "array", "items": [{"type": "integer"}, {"type": "string"}],
 "additionalItems": false}, "any": {}, "yes": true}, "unevaluatedProperties": false},
{"type": "object", "properties": {"u": {"type": "string", "format": "uri", "minLength": 1,
 "maxLength": 2083}, "id": {"type": "string", "format": "uuid", "minLength": 36, "maxLength": 36},
 "code": {"type": "string", "pattern": "^[A-Z]+$", "minLength": 2, "maxLength": 4}},
 "required": ["u", "id", "code"], "dependentRequired": {}, "minProperties": 0,
 "patternProperties": {}}
]"""


def of_tools():
    return of_pydantic() + json.loads(WRITTEN)


# Arguments of one call: strings of every kind stand at their first level, where XML has no quotes.
def of_calls(rng, n, pattern):
    out = []
    for number in range(n):
        maker = Maker(rng)
        properties = {}
        for name in rng.sample(WORDS, rng.randint(1, 3)):
            schema = {"type": "string", "pattern": pattern(rng)} if rng.random() < 0.4 else (
                maker.string() if rng.random() < 0.5 else maker.schema(2))
            if rng.random() < 0.2:
                schema = {"anyOf": [schema, {"type": "null"}]}
            properties[name] = schema
        schema = {"type": "object", "properties": properties,
                  "required": [name for name in properties if rng.random() < 0.7]}
        if rng.random() < 0.2:
            schema["additionalProperties"] = maker.schema(1)
        if maker.definitions:
            schema["$defs"] = maker.definitions
        out.append(schema)
    objects = [schema for schema in of_tools() if schema.get("type", "object") == "object"]
    return out + objects * 4
