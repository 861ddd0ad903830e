//! `holdfast components`: lists the running sandboxed processes with their permissions, and checks whether
//! sandboxes work here.

use crate::output::{Format, clean, table};
use clap::Args;
use holdfast_components::{
    Checked, ComponentError, Listing, Main, Program, Verdict, Wall, listings, selfcheck, weaker,
};
use holdfast_failure::{Exit, Failure, Outcome};
use std::collections::BTreeSet;

/// The components of this program, by name.
pub fn table_of_components() -> Vec<(&'static str, Main)> {
    let server: &[(&'static str, Main)] =
        &[(holdfast_server::privsep::FRONT_END, holdfast_server::privsep::front_end)];
    [
        crate::card::COMPONENTS,
        holdfast_client::processes::COMPONENTS,
        holdfast_release::publish::apart::COMPONENTS,
        server,
    ]
    .concat()
}

/// `holdfast components`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast components
  holdfast components --json
  holdfast components --check

With --check, what a component must not do is tried from inside, each attempt in a process of
its own, on this system and as this user; it ends with code 71 if anything succeeds. Walls that
this system does not have (Landlock, or parts of it, on kernels before 6.12) are named; with
--require-sandbox it ends with code 71 for them too.")]
pub struct Components {
    /// Try whether sandboxes hold here.
    #[arg(long)]
    pub check: bool,
}

/// Lists components, or checks sandboxes.
///
/// # Errors
/// Sandboxes cannot be created here, or are not effective.
pub fn run(arguments: &Components, format: Format) -> Outcome {
    if arguments.check {
        return check(format);
    }
    let found = listings().map_err(|error| failure(&error))?;
    format.print(&found, |found| match found.is_empty() {
        true => "no components run".to_owned(),
        false => {
            let lacking: BTreeSet<Wall> = found.iter().flat_map(Listing::lacking).collect();
            let listed = found.iter().map(words).collect::<Vec<_>>().join("\n");
            with_walls(listed, &lacking.into_iter().collect::<Vec<_>>())
        }
    })
}

fn failure(error: &ComponentError) -> Failure {
    Failure::new(Exit::System, error.to_string())
}

/// Appends the sandbox restrictions that this system lacks to a text.
fn with_walls(text: String, lacking: &[Wall]) -> String {
    match weaker(lacking) {
        Some(words) => format!("{text}\n\n{words}"),
        None => text,
    }
}

fn check(format: Format) -> Outcome {
    let checked = selfcheck(Program::current).map_err(|error| failure(&error))?;
    format.print(&checked, |Checked { lacking, attempts }| {
        let row = |verdict: &Verdict| {
            let holds = if verdict.holds { "holds" } else { "BREACH" };
            vec![holds.to_owned(), verdict.attempt.clone(), clean(&verdict.outcome)]
        };
        with_walls(table(&attempts.iter().map(row).collect::<Vec<_>>()), lacking)
    })?;
    match checked.attempts.iter().filter(|verdict| !verdict.holds).count() {
        0 => Ok(()),
        breaches => {
            Err(Failure::new(Exit::System, format!("sandboxes do not hold here: {breaches} attempts")))
        }
    }
}

/// The components of a supervisor, for people.
fn words(listing: &Listing) -> String {
    let mut out = format!("{} (process {})\n", clean(&listing.name), listing.pid);
    for component in &listing.components {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
        let pid = component.pid.and_then(|pid| u32::try_from(pid).ok());
        out += &format!(
            "  {}: {}, process {}, user {}, started anew {} times\n",
            component.name,
            component.state,
            number(pid),
            number(component.uid),
            component.restarts,
        );
        if let Some(reason) = &component.last_end {
            out += &format!("    last: {}\n", clean(reason));
        }
        let permissions: Vec<_> = component
            .profile
            .permissions
            .iter()
            .map(|permission| format!("{permission:?}").to_lowercase())
            .collect();
        let permissions = if permissions.is_empty() { "none".to_owned() } else { permissions.join(", ") };
        out += &format!("    permissions: {permissions}; {} system calls\n", component.calls.len());
        if !component.lacking.is_empty() {
            let walls: Vec<_> = component.lacking.iter().map(|wall| format!("{wall:?}")).collect();
            out += &format!("    LACKS walls: {}\n", walls.join(", "));
        }
        for channel in &component.channels {
            let peer = channel.peer.as_deref().unwrap_or("the supervisor");
            out += &format!("    channel {}: {:?} {peer}\n", channel.port, channel.role).to_lowercase();
        }
        for region in &component.regions {
            out += &format!("    region {}: {:?}, {} bytes\n", region.name, region.access, region.bytes);
        }
        for file in &component.files {
            out += &format!("    file {file}\n");
        }
        for guard in &component.guards {
            out += &format!("    guard: {guard}\n");
        }
        if let Some(lines) = component.lines {
            out += &format!("    {lines} lines of code\n");
        }
    }
    out
}
