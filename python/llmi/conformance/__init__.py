"""What a server with OpenAI's endpoints must do, as cases that run against its URL: `llmi conformance URL`.

One file a subject, each a list of cases by `@case` or from a table. A case is a function of a `Target`; it raises `Broken` where the server
differs. Nothing here knows which server it is, and only the standard library is needed.
"""
