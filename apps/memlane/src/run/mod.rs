//! `memlane run`: sets the environment, names what will stay on TCP, becomes the command.

pub(crate) mod elf;
mod entering;
mod exec;
mod golang;
pub(crate) mod library;
pub(crate) mod options;
pub(crate) mod program;

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use crate::cli::exit::{Exit, fail};
use crate::cli::out;
use entering::Entering;
use options::Options;

/// Run a command; its TCP connections within this host go through shared memory.
///
/// A connection uses shared memory if the program at the other end runs under memlane too. All others stay on TCP. Set
/// MEMLANE_DISABLE=1 to run the command without memlane.
///
/// The exit code is that of the command. 125: memlane failed before it started the command; 126: the command could not
/// be executed; 127: the command was not found.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Command to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Replaces this process by the command. Returns only if that fails.
pub(crate) fn run(args: Args) -> anyhow::Error {
    let (environment, library) = match prepare(&args) {
        Ok(prepared) => prepared,
        Err(error) => return fail(Exit::Launcher, format!("{error:#}")),
    };
    let name = args.command[0].display();
    let entering = library.and_then(|library| Entering::of(&args.command[0], &library));
    let error = exec::exec(&args.command, &environment, entering.as_ref());
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    fail(exit, format!("cannot run {name}: {error}"))
}

/// Whether MEMLANE_DISABLE switches memlane off, by the rules of the library.
pub(crate) fn disabled() -> bool {
    env::var_os("MEMLANE_DISABLE").is_some_and(|v| !v.is_empty() && v != "0")
}

/// The command's environment, without its library.
pub(crate) fn environment(args: &Args) -> anyhow::Result<Environment> {
    prepare(args).map(|(environment, _)| environment)
}

type Environment = Vec<(OsString, OsString)>;

/// The command's environment, and the library that is in it; `None`: memlane is switched off.
fn prepare(args: &Args) -> anyhow::Result<(Environment, Option<PathBuf>)> {
    let mut environment: Environment = env::vars_os().collect();
    if disabled() {
        return Ok((environment, None));
    }
    let given = args.options.variables().map_err(anyhow::Error::msg)?;
    let library = library::find(env::var_os("MEMLANE_PRELOAD"))?;
    let preload = library::append(env::var_os("LD_PRELOAD").as_deref(), &library);
    for (key, value) in given {
        options::apply(&mut environment, key, value.into());
    }
    for (key, value) in &environment {
        if let (Some(key), Some(value)) = (key.to_str(), value.to_str())
            && let Some(complaint) = options::complaint(key, value)
        {
            out::warn(&complaint);
        }
    }
    options::apply(&mut environment, "LD_PRELOAD", preload);
    if let Some(why) = program::stays_on_tcp(&args.command[0]) {
        out::warn(&format!(
            "{} stays on TCP: {why}",
            args.command[0].display()
        ));
    }
    Ok((environment, Some(library)))
}
