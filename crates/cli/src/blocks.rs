//! `holdfast server blocks`: runs a block server, which has the blocks of servers on other machines.

use crate::args::{Blocks, BlocksCommand};
use crate::listening;
use crate::output::Format;
use holdfast_daemon::{keys, limits, logging};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_server::{BlockServer, BlockServerConfig, Candidate};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// `holdfast server blocks`
pub fn run(arguments: &Blocks, format: Format) -> Outcome {
    match (&arguments.command, &arguments.data) {
        (Some(BlocksCommand::Key(data)), _) => {
            let key = BlockServer::key_in(&data.data)?.to_string();
            format.print(&serde_json::json!({ "key": key }), |_| key.clone())
        }
        (None, Some(data)) => serve(arguments, data),
        (None, None) => Err(Failure::new(Exit::Usage, "a data directory is needed: --data DIR")),
    }
}

fn serve(arguments: &Blocks, data: &Path) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    let allowed = arguments.allow.iter().map(|key| keys::read_public(key)).collect::<Outcome<_>>()?;
    let mut config = BlockServerConfig::new(data, listening::resolve(&arguments.listen)?, allowed);
    config.keep_deleted = Duration::from_secs(arguments.keep_deleted * 24 * 3600);
    config.keep_deleted_bytes = arguments.keep_deleted_mib.map(|mib| mib << 20);
    config.blocks = arguments.blocks.clone();
    config.blocks_anew = arguments.blocks_anew;
    if let Some(etcd) = &arguments.stand_by {
        let login = arguments.stand_by_login.as_deref();
        config.candidate = Some(Arc::new(Candidate::new(
            &config.data,
            config.blocks.as_ref(),
            etcd,
            login,
            arguments.shards,
        )?));
    }
    let server = BlockServer::open(config)?;
    let serves = format!("holdfast serves blocks of {} on {}", data.display(), server.address());
    match listening::front_end(arguments.one_process)? {
        None => Ok(server.run(listening::announced(serves))?),
        Some(program) => {
            let plan = server.front_end()?;
            Ok(server.run_privsep(program, plan, |_| (), listening::announced(serves))?)
        }
    }
}
