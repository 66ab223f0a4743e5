"""`kubeloop structs`: writes structs and resources from CRDs or from a server's OpenAPI.

Promises: names in JSON come out as the schema has them; what it writes is typed (mypy --strict) and formatted.
Forbids: nothing at run time depends on it."""
