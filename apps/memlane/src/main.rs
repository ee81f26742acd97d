//! The command `memlane`: parses the command line, runs a verb, picks the exit code.
// Doc comments of clap's arguments are the text of --help: brackets in them are no links.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

mod agent;
mod beside;
mod blocks;
mod check;
mod cli;
mod daemon;
mod devmem;
mod exporter;
mod info;
mod inject;
mod manuals;
mod net;
mod run;
mod ss;
mod stats;
mod top;
mod trace;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use serde::Serialize;

use cli::exit::{self, Exit};
use cli::out;

/// Carry data between programs through shared memory instead of the network stack.
///
/// memlane run CMD starts a program whose TCP connections within this host use shared memory. The other verbs show what
/// such programs do, and carry packets, volumes and device memory.
#[derive(Parser, Debug)]
#[command(name = "memlane", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    Run(run::Args),
    Ss(ss::Args),
    Stats(stats::Args),
    Top(top::Args),
    Check(check::Args),
    Info(info::Args),
    Exporter(exporter::Args),
    Agent(agent::Args),
    Enable(inject::units::Enable),
    Disable(inject::units::Disable),
    Trace(trace::Args),
    Serve(blocks::serve::Args),
    Map(blocks::map::Args),
    Vol(blocks::vol::Args),
    Session(blocks::session::Args),
    Net(net::Args),
    Nc(devmem::nc::Args),
    Devmem(devmem::probe::Args),
    Webhook(beside::Webhook),
    Csi(beside::Csi),
    #[command(name = "__pages", hide = true)]
    Pages(manuals::Args),
    #[command(name = "__volumes", hide = true)]
    Volumes,
    #[command(name = "__echo-server", hide = true)]
    EchoServer,
    #[command(name = "__echo-client", hide = true)]
    EchoClient(check::echo::ClientArgs),
    #[command(name = "__probe", hide = true)]
    Probe(check::echo::ProbeArgs),
}

impl Verb {
    fn json(&self) -> bool {
        match self {
            Verb::Ss(args) => args.json,
            Verb::Stats(args) => args.json(),
            Verb::Check(args) => args.json,
            Verb::Info(args) => args.json,
            Verb::Vol(args) => args.json(),
            Verb::Session(args) => args.json(),
            Verb::Map(args) => args.json(),
            Verb::Serve(args) => args.json(),
            Verb::Net(args) => args.json(),
            Verb::Nc(args) => args.json,
            Verb::Devmem(args) => args.json(),
            _ => false,
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &arguments).into(),
    };
    let json = cli.verb.json();
    match dispatch(cli.verb) {
        Ok(code) => code,
        Err(error) => {
            let exit = exit::code_of(&error);
            tell(&error, exit, json);
            exit.into()
        }
    }
}

fn dispatch(verb: Verb) -> anyhow::Result<ExitCode> {
    let done = |()| ExitCode::from(Exit::Ok);
    match verb {
        Verb::Run(args) => Err(run::run(args)),
        Verb::Ss(args) => ss::run(&args).map(done),
        Verb::Stats(args) => stats::run(&args).map(done),
        Verb::Top(args) => top::run(&args).map(done),
        Verb::Check(args) => check::run(&args).map(ExitCode::from),
        Verb::Info(args) => info::run(&args).map(ExitCode::from),
        Verb::Exporter(args) => exporter::run(&args).map(done),
        Verb::Enable(args) => inject::units::enable(&args).map(done),
        Verb::Disable(args) => inject::units::disable(&args).map(done),
        Verb::Agent(args) => agent::run(args).map(done),
        Verb::Trace(args) => trace::run(args),
        Verb::Serve(args) => blocks::serve::run(args).map(done),
        Verb::Map(args) => blocks::map::run(args).map(done),
        Verb::Volumes => blocks::process::in_background().map(done),
        Verb::Vol(args) => blocks::vol::run(args).map(done),
        Verb::Session(args) => blocks::session::run(args).map(done),
        Verb::Net(args) => net::run(&args).map(ExitCode::from),
        Verb::Nc(args) => devmem::nc::run(&args).map(done),
        Verb::Devmem(args) => devmem::probe::run(&args).map(done),
        Verb::Webhook(args) => Err(args.run()),
        Verb::Csi(args) => Err(args.run()),
        Verb::Pages(args) => manuals::run(&args).map(done),
        Verb::EchoServer => check::echo::server().map(done),
        Verb::EchoClient(args) => check::echo::client(&args).map(done),
        Verb::Probe(args) => check::echo::probe(&args).map(done),
    }
}

/// Prints help and version to stdout, and a wrong command line to stderr. A wrong command line of `run` is exit code
/// 125, because code 2 may be that of the command that it runs.
fn usage(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let text = error.render().to_string();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    ) {
        return match out::print(&text) {
            Ok(()) => Exit::Ok,
            Err(_) => Exit::Failed,
        };
    }
    out::stderr(&text);
    match arguments.get(1).is_some_and(|verb| verb == "run") {
        true => Exit::Launcher,
        false => Exit::Usage,
    }
}

#[derive(Serialize)]
struct ErrorDocument {
    schema: &'static str,
    exit_code: u8,
    message: String,
}

fn tell(error: &anyhow::Error, exit: Exit, json: bool) {
    let document = ErrorDocument {
        schema: "memlane.error/1",
        exit_code: exit.code(),
        message: format!("{error:#}"),
    };
    match out::json(&document) {
        Ok(text) if json => out::stderr(&text),
        _ => out::warn(&document.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_well_formed() {
        Cli::command().debug_assert();
    }
}
