"""What vLLM's and SGLang's sources say of memory that is given up and taken back, as servers without an engine."""

Asked = dict[str, object]
Said = tuple[int, object]


class Vllm:
    """`mapped` is what of its memory is there, `sleeping` what its executor holds for asleep; of the requests in it, `kept`
    say whether there are any. `dead` once these were to run without their KV cache. What is in `fails` fails once, half way."""

    def __init__(self, kept: bool = False) -> None:
        self.mapped, self.sleeping = {"weights", "kv_cache"}, set[str]()
        self.fails: set[str] = set()
        self.paused = self.dead = False
        self.kept = kept

    def __call__(self, method: str, path: str, query: dict[str, str]) -> Said:
        if path == "/is_sleeping":
            return 200, {"is_sleeping": self.paused or bool(self.sleeping)}
        act = {"/sleep": self._sleep, "/wake_up": self._wake_up, "/collective_rpc": self._reload}.get(path)
        return (200 if act is None or act(query) else 500), {}

    def _sleep(self, query: dict[str, str]) -> bool:
        self.dead = self.dead or (self.kept and query["mode"] == "wait" and "kv_cache" not in self.mapped)
        self.paused = True
        if "weights" not in self.sleeping:  # else it is taken for asleep
            self.mapped, self.sleeping = set(), {"weights", "kv_cache"}
        return True

    def _wake_up(self, query: dict[str, str]) -> bool:
        tag = query["tags"]
        if tag in self.sleeping:
            if tag in self.fails:
                self.fails.discard(tag)
                self.mapped.add(f"part of {tag}")
                return False
            self.mapped = {one for one in self.mapped if not one.endswith(tag)} | {tag}
            self.sleeping.discard(tag)
        self.paused = bool(self.sleeping)
        return True

    def _reload(self, query: dict[str, str]) -> bool:
        assert "weights" in self.mapped
        failed = "reload" in self.fails
        self.fails.discard("reload")
        return not failed


class Sglang:
    """Paused or not, released or not; `dead` once it was asked what its scheduler asserts against. It `refuses` some things
    once, and does others, `mute` once, without an answer."""

    def __init__(self, **info: object) -> None:
        self.info = {"enable_memory_saver": True, "enable_weights_cpu_backup": True, **info}
        self.paused = self.released = self.dead = self.stale = self.unhealthy = False
        self.refuses: set[str] = set()
        self.mute: set[str] = set()

    def __call__(self, method: str, path: str, body: Asked) -> Said:
        if path in self.refuses:
            self.refuses.discard(path)
            return 400, {"error": {"message": "no"}}
        said = self._say(path, body)
        if path in self.mute:
            self.mute.discard(path)
            return 0, {}
        return said

    def _say(self, path: str, body: Asked) -> Said:
        up = not self.dead and not self.unhealthy
        if path in {"/ready", "/ping"}:
            return (200 if up and (path == "/ping" or not self.paused) else 503), {}
        if path == "/health":
            self.unhealthy = self.unhealthy and self.paused
            return (200 if not self.dead and not self.paused else 503), {}
        return self._act(path, body)

    def _act(self, path: str, body: Asked) -> Said:
        if path == "/pause_generation":
            assert body == {"mode": "retract"}
            self.paused = True
        elif path == "/continue_generation":
            self.paused = False
            self.dead = self.dead or self.released or self.stale
        elif path == "/release_memory_occupation":
            self.dead = self.dead or not self.paused or self.released
            self.released, self.stale = True, not self.info["enable_weights_cpu_backup"]
        elif path == "/resume_memory_occupation":
            self.dead = self.dead or not self.released
            self.released = False
        elif path == "/update_weights_from_disk":
            assert body == {"model_path": "/models/m"}
            self.stale = False
        return 200, {"/server_info": self.info, "/model_info": {"model_path": "/models/m"}}.get(path, {"success": True})
