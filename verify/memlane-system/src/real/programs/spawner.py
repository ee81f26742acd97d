"""Starts programs by libc's posix_spawn, and says what it sees.

spawner.py talk CLIENT ARGUMENT… | facts PROGRAM | errors PROGRAM | unread PROGRAM | others PROGRAM | limit PROGRAM | killed PROGRAM
"""
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time


def end(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def talk(client, *arguments):
    """In each way in which a program names another."""
    command = [client, *arguments]
    folder, name = os.path.split(client)
    print("path", end(os.posix_spawn(client, command, os.environ)), flush=True)
    os.chdir(folder)
    print("relative", end(os.posix_spawn("./" + name, command, os.environ)), flush=True)
    os.environ["PATH"] = "/nowhere:" + folder + ":" + os.environ["PATH"]
    print("search", end(os.posix_spawnp(name, command, os.environ)), flush=True)
    print("subprocess", subprocess.call(command, close_fds=False), flush=True)
    print("system", os.waitstatus_to_exitcode(os.system(" ".join(command))), flush=True)


def show(title, pid, read):
    with os.fdopen(read) as output:
        print(title, output.read(), end(pid), flush=True)


def spawned(title, program, arguments=(), actions=(), **attributes):
    """The program's output comes by a pipe, which is its only descriptor but for what `actions` opens."""
    read, write = os.pipe()
    usual = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, write, 1),
    ]
    environment = {**os.environ, "FACT": title}
    pid = os.posix_spawn(
        program, ["facts", *arguments], environment, file_actions=[*usual, *actions], **attributes
    )
    os.close(write)
    show(title, pid, read)


def facts(program):
    """Every attribute and file action that Python knows."""
    with open("input", "w") as text:
        text.write("what the file has\n")
    spawned("nothing", program)
    spawned("arguments", program, ["a", "", "b c", "x" * 300])
    spawned("group", program, setpgroup=0)
    spawned("session", program, setsid=True)
    spawned("mask", program, setsigmask=[signal.SIGUSR1, signal.SIGTERM, signal.SIGTRAP])
    spawned("ids", program, resetids=True)
    spawned("scheduler", program, scheduler=(os.SCHED_OTHER, os.sched_param(0)))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spawned("ignored", program)
    spawned("default", program, setsigdef=[signal.SIGHUP, signal.SIGPIPE])
    spawned("input", program, actions=[(os.POSIX_SPAWN_OPEN, 0, "input", os.O_RDONLY, 0)])
    kept = os.open("input", os.O_RDONLY)
    spawned("descriptors", program, actions=[(os.POSIX_SPAWN_DUP2, kept, 7), (os.POSIX_SPAWN_CLOSE, 2)])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    spawned("blocked", program)


def fails(title, *arguments, **more):
    try:
        os.posix_spawn(*arguments, **more)
    except OSError as error:
        print(title, errno.errorcode[error.errno], flush=True)
    else:
        print(title, "began", flush=True)


def errors(program):
    """The call fails in the child, before or at the exec. No child is left."""
    command, environment = ["facts"], os.environ
    shut = "shut"
    with open(program, "rb") as file, open(shut, "wb") as copy:
        copy.write(file.read())
    fails("missing", program + "-missing", command, environment)
    fails("not executable", os.path.abspath(shut), command, environment)
    actions = [(os.POSIX_SPAWN_DUP2, 99, 1)]
    fails("descriptor", program, command, environment, file_actions=actions)
    actions = [(os.POSIX_SPAWN_OPEN, 5, "/missing/file", os.O_RDONLY, 0)]
    fails("file", program, command, environment, file_actions=actions)
    fails("too long", program, ["x" * 3_000_000], environment)
    fails("group", program, command, environment, setpgroup=1)
    with open(shut, "ab"):
        os.chmod(shut, 0o755)
        fails("busy", os.path.abspath(shut), command, environment)
    try:
        print(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        print("no child")


def others(program):
    """Other children, signals, threads and interrupted calls, while programs are started."""
    asleep = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    told, ticks = [], []
    signal.signal(signal.SIGCHLD, lambda *_: told.append(1))
    signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]

    def start_some():
        for _ in range(15):
            assert end(os.posix_spawn(program, ["start"], os.environ, file_actions=quiet)) == 0

    threads = [threading.Thread(target=start_some) for _ in range(2)]
    for thread in threads:
        thread.start()
    start_some()
    for thread in threads:
        thread.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("ticks", len(ticks) > 10, "told", 0 < len(told) <= 45)
    print("other child", os.waitpid(-1, os.WNOHANG))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = len(told)
    assert end(os.posix_spawn(program, ["start"], os.environ, file_actions=quiet)) == 0
    print("default", len(told) - before)
    with open("/proc/self/status") as status:
        print([line.split() for line in status if line.startswith(("TracerPid", "SigBlk", "Threads"))])
    os.kill(asleep, signal.SIGKILL)
    print("killed", end(asleep))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.posix_spawn(program, ["start"], os.environ, file_actions=quiet)
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("nobody to wait for")


def unread(program):
    """The program gets a connection as its standard input, from which this process has not read all."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = os.fork()
        if client == 0:
            peer = socket.create_connection(listener.getsockname())
            for _ in range(200):
                peer.sendall(b"x" * 100)
                assert peer.recv(1) == b"y"
            peer.sendall(b"what is left\n" * 1000)
            os._exit(0)
        conn, _ = listener.accept()
    for _ in range(200):
        assert len(conn.recv(100, socket.MSG_WAITALL)) == 100
        conn.sendall(b"y")
    print("sent", end(client), conn.recv(5))
    spawned("unread", program, actions=[(os.POSIX_SPAWN_DUP2, conn.fileno(), 0)])


def limit(program):
    """There may be two processes of this user: this one and its child."""
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
    closed = [(os.POSIX_SPAWN_CLOSE, 1), (os.POSIX_SPAWN_CLOSE, 2)]
    # Go cannot start a thread and complains, but it has begun.
    print(end(os.posix_spawn(program, ["start"], os.environ, file_actions=closed)) != 127)


def lives_in(session, pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            state, _, _, its_session = stat.read().rsplit(")", 1)[1].split()[:4]
    except OSError:
        return False
    return int(its_session) == session and state != "Z"


def living(session):
    return sum(lives_in(session, name) for name in os.listdir("/proc") if name.isdecimal())


def killed(program):
    """A process is killed while it starts programs, again and again: nothing of it may be left."""
    left = 0
    for turn in range(60):
        session = os.fork()
        if session == 0:
            os.setsid()
            quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
            while True:
                end(os.posix_spawn(program, ["start"], os.environ, file_actions=quiet))
        time.sleep(0.02 + turn * 0.00037)
        os.kill(session, signal.SIGKILL)
        os.waitpid(session, 0)
        give_up = time.monotonic() + 10
        while living(session) and time.monotonic() < give_up:
            time.sleep(0.01)
        left += living(session)
    print("left", left)


def reported(pid, options, limit):
    """What waitpid says of a child within a time."""
    give_up = time.monotonic() + limit
    while time.monotonic() < give_up:
        done, status = os.waitpid(pid, options | os.WNOHANG)
        if done:
            return status
        time.sleep(0.0005)
    return None


def stopped(program):
    """A program is stopped while it begins: it stops until it is continued, be it at once, and runs to its end."""
    lost = stuck = 0
    for turn in range(200):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(read, 0)
            os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
            os.close(write)
            os.execv(program, ["start", "wait"])
        os.close(read)
        time.sleep(turn % 40 * 0.0002)
        os.kill(child, signal.SIGSTOP)
        if turn >= 120:
            # The library may be about to enter it.
            time.sleep(0.0003)
        else:
            status = reported(child, os.WUNTRACED, 5)
            lost += status is None or not os.WIFSTOPPED(status)
        os.kill(child, signal.SIGCONT)
        os.close(write)
        if reported(child, 0, 5) is None:
            stuck += 1
            os.kill(child, signal.SIGKILL)
            end(child)
    print("lost", lost, "stuck", stuck)


globals()[sys.argv[1]](*sys.argv[2:])
