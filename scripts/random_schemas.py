"""JSON schemas at random, of the subset that hayloft serve supports."""

WORDS = ["name", "age", "bales", "colour", "note", "when", "where", "kind", "size", "tags", "owner", "price"]


def random_schema(dice):
    """An object at its top, as OpenAI's API wants it."""
    return object_schema(dice, 3)


def object_schema(dice, depth):
    names = dice.sample(WORDS, dice.randint(1, 4))
    required = [name for name in names if dice.random() < 0.7]
    return {"type": "object", "properties": {name: value_schema(dice, depth - 1) for name in names}, "required": required,
            "additionalProperties": False}


def value_schema(dice, depth):
    kinds = ["string", "length", "integer", "bounds", "number", "share", "boolean", "null", "enum", "const", "format", "types"]
    if depth > 0:
        kinds += ["object", "array", "array", "anyOf"]
    kind = dice.choice(kinds)
    if kind == "object":
        return object_schema(dice, depth)
    if kind == "array":
        least = dice.randint(0, 2)
        return {"type": "array", "items": value_schema(dice, depth - 1), "minItems": least, "maxItems": least + dice.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [value_schema(dice, depth - 1) for _ in range(dice.randint(1, 3))]}
    if kind == "length":
        least = dice.randint(0, 5)
        return {"type": "string", "minLength": least, "maxLength": least + dice.randint(0, 20), "description": "Of some length."}
    if kind == "bounds":
        least = dice.randint(-500, 500)
        return {"type": "integer", "minimum": least, dice.choice(["maximum", "exclusiveMaximum"]): least + dice.randint(1, 2000)}
    if kind == "share":
        least = dice.randint(-3, 3)
        return {"type": "number", dice.choice(["minimum", "exclusiveMinimum"]): least, dice.choice(["maximum", "exclusiveMaximum"]): least + dice.randint(1, 4)}
    if kind == "enum":
        return {"enum": dice.sample(["red", "green", "a \"quote\"", "é", 5, 2.5, None, True, "\\"], dice.randint(1, 4))}
    if kind == "const":
        return {"const": dice.choice(["fixed", 7, None, ["a", 1]])}
    if kind == "format":
        return {"type": "string", "format": dice.choice(["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "hostname"])}
    if kind == "types":
        return {"type": dice.sample(["integer", "boolean", "null", "number"], 2)}
    if kind == "string":
        return {"type": "string", "maxLength": 200}
    return {"type": kind}
