//! `holdfast fs restored`: the superuser declares that the server was put back to an older state.

use super::args::Restored;
use crate::admin::asking::DEADLINE;
use crate::output::{Format, clean};
use holdfast_client::admin::{DeclarationPreview, DeclareConfig, declare_restore};
use holdfast_daemon::keys;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_rpc::Address;
use std::io::{BufRead, IsTerminal};

/// `holdfast fs restored`
pub fn run(arguments: &Restored, directories: &Directories, format: Format) -> Outcome {
    let address: Address = arguments.url.parse()?;
    let superuser = keys::read(&arguments.superuser)?;
    let state_dir = directories.state_of(&address.file_system, &superuser.public())?;
    make_private(&state_dir)?;
    let processes = superuser.into_processes()?;
    let config = DeclareConfig { address, state_dir, processes, deadline: DEADLINE };
    let mut asked = Ok(());
    let mut confirm = |prospect: DeclarationPreview| {
        asked = if arguments.yes { Ok(()) } else { confirmed(prospect) };
        asked.is_ok()
    };
    let declared = declare_restore(&config, &mut confirm)?;
    asked?;
    let Some(report) = declared else { return Err(Failure::new(Exit::Failed, "not declared")) };
    format.print(&report, |report| {
        format!(
            "{} All devices take it up by themselves, mounts that run as well, and send again what they had written. Changes \
             of users, groups and devices that are lost have to be made again.",
            clean(&report.to_string())
        )
    })
}

/// Asks for confirmation.
fn confirmed(prospect: DeclarationPreview) -> Outcome {
    let DeclarationPreview { size, seen } = prospect;
    let told = match seen.checked_sub(size) {
        None | Some(0) => format!(
            "The server has {size} operations, all that this device has seen. Others may have seen more; that would be lost."
        ),
        Some(lost) => format!(
            "The server has {size} operations; this device has seen {seen}. At least {lost} would be lost for everybody."
        ),
    };
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::new(Exit::Usage, "nobody is there to say whether this is to be declared")
            .hint(format!("--yes declares without asking. {told}")));
    }
    eprint!("{told}\nDeclare that it was put back to this state? yes or no: ");
    let mut answer = String::new();
    input.lock().read_line(&mut answer).map_err(|error| Failure::new(Exit::Io, error))?;
    match answer.trim() {
        "yes" | "y" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "not declared")),
    }
}
