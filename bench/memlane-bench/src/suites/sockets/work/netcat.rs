//! dd's zeros through a pipe and a connection: `dd | nc` to `nc -l`, in the pieces that nc reads, and there and back through two
//! socats, which wait by select until they can read or write. dd is interrupted when the time is over, and tells what it has
//! copied.

use super::super::trial::{Address, Place, Reading, Trial, cpu_of_bytes};
use super::super::works::Line;
use crate::runner::parse;
use crate::runner::proc::free_port;

/// The row there and back.
const SOCAT: &str = "socat";

/// Commands of a shell.
struct Ends {
    /// Takes the zeros. Its arguments: the address and the port to listen at.
    server: &'static str,
    /// Sends them. Its arguments: the server's address and port, and the seconds.
    client: &'static str,
}

const NC_ENDS: Ends = Ends {
    server: "exec nc.openbsd -d -l \"$1\" \"$2\" >/dev/null",
    client: "exec 3>&1; timeout --foreground -s INT \"$3\" dd if=/dev/zero bs=64k 2>&3 \
        | nc.openbsd -N \"$1\" \"$2\" >/dev/null",
};
const SOCAT_ENDS: Ends = Ends {
    server: "exec socat \"TCP-LISTEN:$2,bind=$1\" EXEC:cat",
    client: "exec 3>&1; timeout --foreground -s INT \"$3\" dd if=/dev/zero bs=64k 2>&3 \
        | socat -t 30 STDIO \"TCP:$1:$2\" >/dev/null",
};

pub(super) fn measure(trial: &Trial<'_>, line: &Line) -> anyhow::Result<Reading> {
    let ends = if line.id == SOCAT {
        SOCAT_ENDS
    } else {
        NC_ENDS
    };
    let port = free_port()?;
    let (number, seconds) = (port.to_string(), trial.bench.seconds.to_string());
    let args = ["-c", ends.server, "sh", trial.network.listens(), &number];
    let server = trial.command(Place::SERVER, "sh", &args)?;
    let server = trial.serve(server, &Address::Port(port))?;
    let args = [
        "-c",
        ends.client,
        "sh",
        trial.network.reached(),
        &number,
        &seconds,
    ];
    let ran = trial.run_and_look(&server, trial.command(Place::CLIENT, "sh", &args)?)?;
    let (bytes, time) = parse::dd(&ran.text)?;
    let mut values = vec![("throughput", "MB/s", bytes / time.max(1e-9) / 1e6)];
    values.extend(cpu_of_bytes(ran.cpu, bytes));
    Ok(ran.reading(line.id, values))
}
