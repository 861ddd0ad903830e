//! The same components without walls, all in this process, where a request is a function call. Only for
//! measuring the cost of the walls (section 5 of the paper: UFS is PFS with local calls instead of messages):
//! an attacker who takes over one component here has all of them. No command of Holdfast uses this.
//!
//! Everything but the walls is the same: plan, ports, aliases and their guards, regions, encoded requests and
//! answers. A component's own thread starts it and then waits; its answers are computed on the client's
//! thread.

use crate::alias::{AliasPage, AliasView};
use crate::channel::{Bounds, Patience, Raw, Refusal, Reply, Request};
use crate::component::{Context, Main};
use crate::error::{ComponentError, During, Result};
use crate::plan::{ComponentPlan, Plan};
use crate::ports::Ports;
use crate::region::View;
use crate::supervisor::{Event, ProcessName};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Handles calls to a component.
pub(crate) type Handler = Arc<dyn Fn(Request) -> Reply + Send + Sync>;

/// A channel that is a function call.
pub(crate) struct Call {
    to: Arc<Ports>,
    /// Name of the port at the called component.
    port: String,
    asks: AliasView,
    serves: AliasView,
    bounds: Bounds,
}

impl Call {
    /// Asks, under an alias of the asker's.
    pub(crate) fn run(
        &self,
        port: &str,
        number: u64,
        alias: u16,
        body: &[u8],
        files: &[BorrowedFd],
        patience: Patience,
    ) -> Raw {
        let bytes_max = self.bounds.body_bytes_max as usize;
        let port = || port.to_owned();
        if body.len() > bytes_max {
            return Err(ComponentError::TooLarge { port: port(), bytes: body.len(), bytes_max });
        }
        let refused = |refusal| ComponentError::Refused { port: port(), refusal };
        let files = files.iter().map(|file| file.try_clone_to_owned());
        let files = files.collect::<std::io::Result<_>>().during("handing over a file")?;
        let handler = self.to.handler(&self.port, patience)?;
        let alias = self.asks.resolve(alias).ok_or_else(|| refused(Refusal::AliasInvalid))?;
        let answer = handler(Request { port: &self.port, alias, number, body, files });
        let alias = self.serves.resolve(answer.alias).ok_or_else(|| refused(Refusal::AliasInvalid))?;
        match answer.outcome {
            Ok(body) if body.len() <= bytes_max => Ok((alias, body, answer.files)),
            Ok(_) => {
                Err(refused(Refusal::Failed("the answer is larger than the channel carries".to_owned())))
            }
            Err(refusal) => Err(refused(refusal)),
        }
    }
}

/// Components of one plan in this process.
pub struct Merged {
    host: Arc<Ports>,
    components: Vec<Arc<Ports>>,
    threads: Vec<JoinHandle<()>>,
}

impl Merged {
    /// Starts everything in a plan. The plan's profiles have no effect here, and nothing is restarted.
    ///
    /// # Errors
    /// The plan is inconsistent, or the system has no memory or threads left.
    pub fn start(table: &[(&str, Main)], plan: Plan, listener: impl Fn(Event)) -> Result<Merged> {
        plan.check()?;
        let mut realm = [0; 16];
        getrandom::fill(&mut realm).map_err(|error| ComponentError::System {
            what: "drawing a name",
            source: std::io::Error::other(error.to_string()),
        })?;
        let named = |counter| -> Result<(ProcessName, Arc<AliasPage>)> {
            let (process, page) = (ProcessName { realm, counter }, Arc::new(AliasPage::create()?));
            page.set(0, &process.to_bytes())?;
            Ok((process, page))
        };
        let host = (Ports::merged(0, BTreeMap::new(), Vec::new()), named(0)?.1);
        let mut known = BTreeMap::new();
        let mut ready = Vec::new();
        for (component, run) in plan.components.into_iter().zip(1..) {
            let (process, page) = named(run)?;
            let ComponentPlan { name, program, configuration, regions, files, .. } = component;
            let main = table.iter().find(|(known, _)| *known == program).map(|(_, main)| *main);
            let main = main.ok_or_else(|| ComponentError::NoSuchComponent(program.clone()))?;
            let mut views = BTreeMap::new();
            for grant in regions {
                let view = View::new(grant.region.view(grant.access)?, grant.access, grant.region.bytes());
                views.insert(grant.name, Arc::new(view));
            }
            let ports = Ports::merged(run, views, files);
            listener(Event::Starting {
                component: &name,
                process,
                pid: rustix::process::getpid().as_raw_nonzero().get(),
                uid: rustix::process::getuid().as_raw(),
                aliases: &page,
            });
            known.insert(name.clone(), (Arc::clone(&ports), page));
            ready.push((Context { name, ports, configuration, run }, main));
        }
        for channel in plan.channels {
            let end = |component: &Option<String>| match component {
                None => &host,
                Some(name) => &known[name],
            };
            let ((asks, from), (to, by)) = (end(&channel.asks.component), end(&channel.serves.component));
            let call = Call {
                to: Arc::clone(to),
                port: channel.serves.port.clone(),
                asks: AliasView::map(&from.reader()?)?,
                serves: AliasView::map(&by.reader()?)?,
                bounds: channel.bounds,
            };
            asks.connect(&channel.asks.port, call);
        }
        let mut merged = Merged {
            host: host.0,
            components: ready.iter().map(|(context, _)| Arc::clone(&context.ports)).collect(),
            threads: Vec::new(),
        };
        for (context, main) in ready {
            let name = context.name.clone();
            let run = move || {
                let name = context.name.clone();
                let ports = Arc::clone(&context.ports);
                if format!("{:?}", main(context)) != format!("{:?}", std::process::ExitCode::SUCCESS) {
                    tracing::error!(component = name, "a component failed");
                }
                ports.stop();
            };
            let thread = std::thread::Builder::new().name(name).spawn(run);
            merged.threads.push(thread.during("starting a thread")?);
        }
        Ok(merged)
    }

    /// The ends of channels that the host has.
    pub fn ports(&self) -> &Arc<Ports> {
        &self.host
    }

    /// Ends all components, and waits for them.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        for ports in self.components.iter().rev() {
            ports.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.host.stop();
    }
}

impl Drop for Merged {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Asker, BODY_BYTES_MAX};
    use crate::plan::{ChannelPlan, End};
    use crate::sandbox::Profile;
    use parking_lot::Mutex;
    use std::process::ExitCode;

    /// Answers with the answer of the component behind it, and with the client's name.
    fn front(context: Context) -> ExitCode {
        let back: Asker<Vec<u8>, Vec<u8>> = context.ports.asker("back").expect("planned");
        let served = context.ports.serve_owned(1, move |request| {
            let asked = request.question().and_then(|question: Vec<u8>| {
                back.ask(0, &question, patience()).map_err(|error| Refusal::Failed(error.to_string()))
            });
            asked.map(|answer| (answer, request.alias.principal)).into()
        });
        if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Counts what it is asked; answers as long as it is asked for.
    fn back(context: Context) -> ExitCode {
        let count = Mutex::new(0u8);
        let served = context.ports.serve_owned(1, move |request| {
            *count.lock() += 1;
            let answer = request.question().map(|question: Vec<u8>| match question.len() {
                0 => vec![0; BODY_BYTES_MAX],
                _ => vec![*count.lock(); question.len()],
            });
            answer.into()
        });
        if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    type EchoReply = (Vec<u8>, [u8; 32]);

    fn start() -> (Merged, Asker<Vec<u8>, EchoReply>) {
        let plan = Plan {
            name: "merged".to_owned(),
            components: ["front", "back"].map(|name| ComponentPlan::new(name, Profile::default())).into(),
            channels: vec![
                ChannelPlan::new(End::host("ask"), End::of("front", "from-host")),
                ChannelPlan::new(End::of("front", "back"), End::of("back", "from-front")),
            ],
        };
        let merged = Merged::start(&[("front", front), ("back", back)], plan, |_| ()).expect("starts");
        let asker = merged.ports().asker("ask").expect("planned");
        (merged, asker)
    }

    fn patience() -> Patience {
        Patience::of(holdfast_testing::PATIENCE)
    }

    /// Proves: components without walls call each other like those with walls, with the client's name,
    /// whichever starts first. A name that is not proven is refused before the component sees it, and so is a
    /// request that is too large.
    #[test]
    fn calls() {
        let (merged, asker) = start();
        let (answer, name) = asker.ask(0, &vec![1, 2, 3], patience()).expect("answered");
        assert_eq!(answer, [1; 3]);
        assert_ne!(name, [0; 32], "the host's process has a name");
        let refused = asker.ask(7, &vec![1], patience());
        let is_refused =
            |refused| matches!(refused, Err(ComponentError::Refused { refusal: Refusal::AliasInvalid, .. }));
        assert!(is_refused(refused));
        assert_eq!(
            asker.ask(0, &vec![9], patience()).expect("answered").0,
            [2],
            "it was not asked meanwhile"
        );
        let large = asker.ask(0, &vec![0; BODY_BYTES_MAX], patience());
        assert!(matches!(large, Err(ComponentError::TooLarge { .. })), "{large:?}");
        let large = asker.ask(0, &Vec::new(), patience());
        assert!(
            matches!(&large, Err(ComponentError::Refused { refusal: Refusal::Failed(_), .. })),
            "{large:?}"
        );
        merged.stop();
    }

    /// Proves: once all are asked to end, nothing waits and nothing is answered.
    #[test]
    fn ends() {
        let (merged, asker) = start();
        asker.ask(0, &vec![1], patience()).expect("answered");
        merged.stop();
        let late = asker.ask(0, &vec![1], patience());
        assert!(matches!(late, Err(ComponentError::Disconnected(_))), "{late:?}");
    }
}
