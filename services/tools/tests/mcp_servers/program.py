"""A stdio server without a library, so that it starts fast. Its faults are tools, or the first argument."""

SOURCE = """
import json, os, socket, subprocess, sys, time

fault = sys.argv[1] if len(sys.argv) > 1 else ""
tools = ["echo", "env", "note", "crash", "hang", "slow", "flood", "garbage", "close", "big", "child", "more", "reach",
         "report", "rich", "where", "fill", "drop"]


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": str(value)}]}


def call(name, arguments, meta):
    if name == "echo":
        return text(arguments.get("text", ""))
    if name == "env":  # backwards, because values in clear are removed
        return text(json.dumps({key: value[::-1] for key, value in os.environ.items()}))
    if name == "where":
        return text(json.dumps([os.getpid(), os.getcwd(), os.getuid()]))
    if name == "note":
        with open("notes.txt", "a") as file:
            file.write(arguments.get("text", "") + " ")
        return text(open("notes.txt").read().strip())
    if name == "fill":
        with open("large", "wb") as file:
            for _ in range(arguments["mb"]):
                file.write(os.urandom(1 << 20))
                file.flush()
                time.sleep(0.01)
        return text("filled")
    if name == "drop":
        os.remove("large")
        return text("removed")
    if name == "crash":
        print("the secret is", os.environ.get("TOKEN"), file=sys.stderr, flush=True)
        os._exit(7)
    if name == "hang":
        print("the call hangs", file=sys.stderr, flush=True)
        time.sleep(3600)
    if name == "slow":
        send(method="notifications/progress", params={
            "progressToken": meta["progressToken"], "progress": 4, "total": 10, "message": "indexing"})
        time.sleep(3600)
    if name == "report":
        for value in json.loads(arguments["values"]):
            send(method="notifications/progress", params={"progressToken": meta["progressToken"], **value})
        return text("done")
    if name == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    if name == "garbage":
        print("this is not a message\\n" * 3, flush=True)
        return text("done")
    if name == "close":
        os.close(1)
        time.sleep(3600)
    if name == "big":
        return text("x" * 300_000)
    if name == "child":
        child = subprocess.Popen(["sleep", "3600"])
        return text(child.pid)
    if name == "more":
        tools.append("added")
        send(method="notifications/tools/list_changed")
        return text("changed")
    if name == "reach":
        try:
            import urllib.request
            with urllib.request.urlopen(arguments["url"], timeout=5) as answer:
                return text(answer.read().decode())
        except Exception as error:
            return text(type(error).__name__)
    if name == "rich":
        return {"content": [
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///a.png", "mimeType": "image/png", "blob": "iVBORw0KGgo="}},
            {"type": "resource", "resource": {"uri": "file:///a.bin", "mimeType": "application/zip", "blob": "AAAA"}},
            {"type": "resource_link", "name": "a", "uri": "file:///a.txt"},
        ], "structuredContent": {"ok": True}}
    raise ValueError(name)


if fault == "silent":
    time.sleep(3600)
if fault == "dies":
    print("no configuration", file=sys.stderr)
    sys.exit(3)
if fault == "noise":
    while True:
        print("hello")
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params") or {}
    if "id" not in request:
        continue
    if method == "initialize":
        send(id=request["id"], result={
            "protocolVersion": params["protocolVersion"], "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "program", "version": "1"}})
    elif method == "tools/list":
        first = int(params.get("cursor") or 0)
        page = [{"name": name, "inputSchema": {"type": "object"}} for name in tools[first:first + 6]]
        more = {"nextCursor": str(first + 6)} if first + 6 < len(tools) else {}
        send(id=request["id"], result={"tools": page, **more})
    elif method == "tools/call":
        send(id=request["id"], result=call(params["name"], params.get("arguments") or {}, params.get("_meta") or {}))
    else:
        send(id=request["id"], error={"code": -32601, "message": "unknown method"})
"""
