"""Load on a server with OpenAI's endpoints, and what its users would see: `llmi bench serve --url URL`.

A run has four parts: requests (workload), intended send times (arrivals), one loop over sockets that only notes when bytes came
(connection, loop), and after it the sums (events, measures). Nothing is parsed while the clock runs, so the client takes little of the
machine that it shares with the server.
"""
