"""The checks of `hocket doctor --address`: whether ranks of this host reach rank 0 there, and what stands in the way.

They need neither a job nor its key, and end within LIMIT_SECONDS. If a key is set, they say where it comes from.
"""

import errno
import ipaddress
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hocket.cli import strangers
from hocket.cli.doctor.diagnosis import Finding
from hocket.errors import CommunicationError
from hocket.runtime import variables
from hocket.runtime.network import addresses, connecting, interfaces, job_key

LIMIT_SECONDS = 10.0
_NAME_SECONDS = 6.0  # a name server that keeps silent costs 5 s, and then the next one is asked
_SLOW_SECONDS = 2.0
_CONNECT_SECONDS = 2.5  # a lost first packet is sent again after 1 s
_MAX_HOSTS = 8


def diagnose_address(host: str, port: int) -> list[Finding]:
    """Returns all findings, in the order in which to fix them. Never raises."""
    inspection = _Inspection(host, port)
    checks: dict[str, Callable[[], Finding | None]] = {
        "name": inspection.check_name,
        "interface": inspection.check_interface,
        "connection": inspection.check_connection,
        "answer": inspection.check_answer,
        "key": inspection.check_key,
        "port": inspection.check_port,
    }
    findings = []
    for name, check in checks.items():
        try:
            finding = check()
        except Exception as error:
            text = f"the check itself failed ({type(error).__name__}: {error})"
            finding = Finding(name, "WARN", text, "please report this line; Hocket may still work")
        if finding is not None:
            findings.append(finding)
    inspection.close()
    return findings


class _Inspection:
    """One look at an address. A check builds on those before it, and returns None if it does not apply."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._end = time.monotonic() + LIMIT_SECONDS
        self._hosts: list[str] = []  # its IP addresses
        self._chosen: list[interfaces.LocalAddress] = []  # by HOCKET_SOCKET_IFNAME
        self._reached: list[connecting.Reached] = []
        self._is_job = False

    def close(self) -> None:
        for one in self._reached:
            one.connection.close()

    def _until(self, seconds: float) -> float:
        return min(time.monotonic() + seconds, self._end)

    def check_name(self) -> Finding:
        """To which addresses the name leads."""
        began = time.monotonic()
        try:
            found = addresses.resolve(self.host, self._until(_NAME_SECONDS))
        except OSError as error:
            text = f"{self.host}: {connecting.reason_in_words(error, 'rank 0')}"
            return Finding("name", "FAIL", text, "correct it or /etc/hosts, or give the IP address of rank 0's host")
        seconds = time.monotonic() - began
        self._hosts = found[:_MAX_HOSTS]
        text = self.host if found == [self.host] else f"{self.host} is {', '.join(found)}"
        if all(map(_is_loopback, found)):
            first, *others = interfaces.choose(None, None)
            usable = [one.host for one in (first, *others) if one.interface == first.interface]
            usable = [one for one in usable if not _is_loopback(one)]
            fix = "if rank 0 runs on another host, correct this address or /etc/hosts; if here, " + (
                f"other hosts reach it at {' or '.join(usable)}" if usable else "attach this host to a network"
            )
            return Finding("name", "WARN", f"{text}: the loopback interface, which no other host reaches", fix)
        if seconds > _SLOW_SECONDS:
            fix = "correct the first name server in /etc/resolv.conf, or add the name to /etc/hosts"
            return Finding("name", "WARN", f"{text}, found after {seconds:.1f} s", fix)
        return Finding("name", "OK", text)

    def check_interface(self) -> Finding:
        """Which interface leads there, and whether HOCKET_SOCKET_IFNAME chooses it."""
        pattern, here, name = interfaces.named_interfaces(), interfaces.list_interfaces(), variables.SOCKET_IFNAME
        sources = [source for source in map(interfaces.source_towards, self._hosts) if source]
        routing = interfaces.choose_among(here, None, sources[0])[0] if sources else None
        try:
            chosen = interfaces.choose_among(here, pattern, sources[0] if sources else None)
        except (ValueError, CommunicationError) as error:
            return Finding("interface", "FAIL", *_parts(error, f"correct or unset {name}"))
        self._chosen = chosen if pattern else []
        if self._hosts and routing is None:
            text = f"no route to {self.host}; this host has {interfaces.describe(here)}"
            fix = "attach this host to that network, or give another address of rank 0's host"
            return Finding("interface", "FAIL", text, fix)
        route = f"{routing} routes to {self.host}" if routing else f"this host has {interfaces.describe(here)}"
        if not pattern:
            return Finding("interface", "OK", route)
        text = f"{name}={pattern} chooses {', '.join(map(str, chosen))}"
        if sources and not {one.host for one in chosen} & set(sources):
            return Finding("interface", "WARN", f"{text}, but {route}", f"unset {name}, unless both lead there")
        return Finding("interface", "OK", text)

    def check_connection(self) -> Finding | None:
        """Whether each address accepts a connection."""
        if not self._hosts:
            return None
        with ThreadPoolExecutor(len(self._hosts)) as pool:
            results = list(pool.map(self._try, self._hosts))
        self._reached = [one for one in results if isinstance(one, connecting.Reached)]
        failed = [one for one in results if isinstance(one, connecting.Unanswered)]
        said = [f"{addresses.write_address(*one.address)} accepts" for one in self._reached]
        said += [
            f"{addresses.write_address(*one.address)} {connecting.reason_in_words(one.error, 'rank 0')}"
            for one in failed
        ]
        return Finding("connection", *self._judge("; ".join(said), {one.error.errno for one in failed}))

    def _judge(self, text: str, failed: set[int | None]) -> tuple[str, str, str]:
        if not failed:
            return "OK", text, ""
        if self._reached:
            return "WARN", text, "ranks use the address that answers; give it instead of the name"
        if errno.ECONNREFUSED in failed:
            return "WARN", text, "start rank 0 and run this again, or correct the port"
        if errno.ETIMEDOUT in failed:
            return (
                "FAIL",
                text,
                f"see that the host is up, and that every firewall between lets TCP port {self.port} in",
            )
        return "FAIL", text, f"correct the address, the network, or {variables.SOCKET_IFNAME}"

    def _try(self, host: str) -> connecting.Reached | connecting.Unanswered:
        try:
            return connecting.connect([(host, self.port)], self._until(_CONNECT_SECONDS), sources=self._chosen)
        except connecting.UnreachedError as error:
            return error.unanswered[0]

    def check_answer(self) -> Finding | None:
        """Whether a Hocket job answers there, or something else."""
        if not self._reached:
            return None
        first = self._reached[0]
        seen = strangers.identify(first.connection, lambda: self._try(first.address[0]), self._end)
        self._is_job = seen.kind == "hocket"
        if self._is_job:
            return Finding("answer", "OK", "a Hocket job answers")
        if seen.kind == "store":
            fix = (
                f"under torchrun, unset {variables.ADDRESS}: ranks find rank 0 by this store; else choose another port"
            )
            return Finding("answer", "FAIL", "PyTorch's store answers, as of torchrun: not a Hocket job", fix)
        fix = f"choose another port, or end what listens there: on its host, `ss -ltnp sport = :{self.port}` names it"
        return Finding("answer", "FAIL", f"no Hocket job: {seen.words}", fix)

    def check_key(self) -> Finding:
        """What tells a rank that starts here the key of the job."""
        try:
            found = job_key.job_key()
        except CommunicationError as error:
            return Finding("key", "FAIL", *_parts(error, f"correct or unset {variables.KEY_FILE}"))
        if found is None:
            text = (
                f"none is set here: {variables.KEY_FILE} names it, unless `hocket run --hosts`, MPICH or Intel MPI does"
            )
            return Finding("key", "OK", text)
        if found.told_by == variables.KEY:
            text = f"by {variables.KEY}, which child processes, core dumps and logs see"
            return Finding("key", "WARN", text, f"write it to a file of mode 0600 and set {variables.KEY_FILE}")
        return Finding("key", "OK", f"by {found.told_by}")

    def check_port(self) -> Finding | None:
        """Whether rank 0 could listen there, if it is an address of this host."""
        if not self._hosts:
            return None
        own = [
            one for one in self._hosts if _is_loopback(one) or interfaces.source_towards(one) == one.partition("%")[0]
        ]
        if not own:
            return Finding("port", "OK", "of another host: run this command there to learn whether the port is free")
        if self._is_job:
            return Finding("port", "OK", "of this host, and in use by that job")
        if self._reached:
            return None  # what answers has it
        for one in own:
            try:
                connecting.listen(one, self.port, 1).close()
            except CommunicationError as error:
                return Finding("port", "FAIL", *_parts(error, "choose another port"))
        return Finding("port", "OK", "of this host, and free: rank 0 can listen there")


def _parts(error: Exception, next_step: str) -> tuple[str, str]:
    """Returns what an error found, and what to do: the end of its message, if it says so there."""
    found, _, fix = str(error).rpartition("; ")
    return (found, fix) if isinstance(error, CommunicationError) and found else (str(error), next_step)


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
