//! Every view that a lying server can make.
//!
//! For each other device the view has any structure it ever signed, or none. Its pending list has any
//! certificates that continue those slots, in any order, alive or dead, each with a forecast that was signed,
//! or used before, or that follows from the entries before it. Other invented forecasts are left out: an
//! operation that is ever to be committed must have the signed forecast in the end, or whoever recorded the
//! other one refuses. The log is each client's own, continued with the operations that the view or any
//! signature has at a place, or with operations that nobody sees: no check asks which of several would be
//! there, and where equality is checked, this choice satisfies it. A view has the least place that fits, or
//! with [`super::Config::gaps`] a later one.
//!
//! With [`super::Config::prune`], parts of which neither vector is at most the other are not combined: every
//! order would have to contain both. One configuration runs without it, to prove that this leaves nothing
//! out.

use super::{Artefact, Body, Busy, Client, EventOutcome, Lying, Verb, filler, outcome};
use crate::world::name;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::{Certificate, Path};
use holdfast_protocol::log_tree::leaf;
use holdfast_protocol::message::ViewReply;
use holdfast_protocol::order::{forecast, last_vector};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{Forecast, PendingEntry, Structure, View};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A view that is being made.
#[derive(Clone, Default)]
struct Draft {
    view: View,
    /// The numbers of its parts.
    parts: Vec<u32>,
}

/// The parts for views.
struct Pool {
    structures: BTreeMap<DeviceId, Vec<(u32, Signed<Structure>)>>,
    certificates: Vec<(u32, Signed<Certificate>)>,
    forecasts: Vec<(u32, Forecast)>,
}

fn parts(view: &View) -> impl Iterator<Item = &Forecast> {
    let slots = view.slots.values().map(|slot| &slot.value.forecast);
    slots.chain(view.pending.iter().map(|entry| &entry.forecast))
}

fn comparable(x: &Forecast, y: &Forecast) -> bool {
    x.vector.at_most(&y.vector) || y.vector.at_most(&x.vector)
}

impl<B: Body> Lying<B> {
    /// The results of all views that a client would accept.
    pub(super) fn believed(&mut self, client: u32, pool: u32, verb: Verb) -> Rc<Vec<EventOutcome>> {
        if let Some(known) = self.views.get(&(client, pool, verb as u8)) {
            return known.clone();
        }
        let before = self.clients.get(client);
        let things = self.things(pool);
        let mut drafts = Vec::new();
        self.choose_slots(&before, &things, &mut drafts);
        let mut believed: Vec<EventOutcome> = Vec::new();
        for draft in drafts {
            for gap in 0..=self.config.gaps {
                if let Some(told) = self.show(client, &before, &things, &draft, gap, verb)
                    && !believed.iter().any(|known| {
                        (known.client, &known.artefacts, &known.broken)
                            == (told.client, &told.artefacts, &told.broken)
                    })
                {
                    believed.push(told);
                }
            }
        }
        let believed = Rc::new(believed);
        self.views.insert((client, pool, verb as u8), believed.clone());
        believed
    }

    fn things(&self, pool: u32) -> Pool {
        let mut things =
            Pool { structures: BTreeMap::new(), certificates: Vec::new(), forecasts: Vec::new() };
        for artefact in self.pools.get(pool).iter() {
            match &*self.artefacts.get(*artefact) {
                Artefact::Structure { signed } => {
                    let device = signed.value.device();
                    things.structures.entry(device).or_default().push((*artefact, signed.clone()));
                    things.forecasts.push((*artefact, signed.value.forecast.clone()));
                }
                Artefact::Certificate(certificate) => {
                    things.certificates.push((*artefact, certificate.clone()));
                }
                Artefact::Forecast(forecast) => things.forecasts.push((*artefact, forecast.clone())),
            }
        }
        things
    }

    fn choose_slots(&mut self, before: &Client<B>, things: &Pool, drafts: &mut Vec<Draft>) {
        let floor = before.body.floor();
        let mut open = vec![Draft::default()];
        if let Some(own) = floor.own() {
            open[0].view.slots.insert(floor.device, own.clone());
        }
        for (device, structures) in things.structures.iter().filter(|(device, _)| **device != floor.device) {
            let mut next = Vec::new();
            for draft in open {
                // There is always a membership.
                if *device != DeviceId::SUPERUSER {
                    next.push(draft.clone());
                }
                for (artefact, structure) in structures {
                    let fits = |other: &Forecast| comparable(other, &structure.value.forecast);
                    if self.config.prune
                        && !(parts(&draft.view).all(fits) && floor.element.as_ref().is_none_or(fits))
                    {
                        continue;
                    }
                    let mut draft = draft.clone();
                    draft.view.slots.insert(*device, structure.clone());
                    draft.parts.push(*artefact);
                    next.push(draft);
                }
            }
            open = next;
        }
        for draft in open {
            self.choose_pending(before, things, draft, drafts);
        }
    }

    fn choose_pending(&mut self, before: &Client<B>, things: &Pool, draft: Draft, drafts: &mut Vec<Draft>) {
        let floor = before.body.floor();
        drafts.push(draft.clone());
        if draft.view.pending.len() >= self.config.pending_max {
            return;
        }
        let in_flight = match &before.busy {
            Busy::Update(certificate) => Some(certificate.value.digest()),
            _ => None,
        };
        for (number, certificate) in &things.certificates {
            let declared = &certificate.value;
            let slot = draft.view.slots.get(&declared.device).map(|slot| &slot.value);
            let mut former =
                draft.view.pending.iter().filter(|entry| entry.forecast.device == declared.device);
            // No client sends this on top of these slots, or only after it gave up what is alive here.
            if declared.path != Path::Slow
                || declared.previous != slot.map_or(Digest::ZERO, |slot| slot.forecast.digest())
                || declared.number <= slot.map_or(0, Structure::number)
                || former.any(|entry| entry.forecast.number() >= declared.number || !entry.dead)
                || in_flight == Some(declared.digest())
                || (declared.device == floor.device && !floor.voids.contains(declared.number))
            {
                continue;
            }
            for forecast in self.forecasts_of(before, things, &draft.view, declared) {
                let fits = |other: &Forecast| comparable(other, &forecast);
                if self.config.prune
                    && !(parts(&draft.view).all(fits) && floor.element.as_ref().is_none_or(fits))
                {
                    continue;
                }
                let shown = self.forecast(&forecast);
                for dead in [false, true] {
                    if (dead && !self.config.aborts && declared.device != floor.device)
                        || (!dead && declared.device == floor.device && before.busy != Busy::Idle)
                    {
                        continue;
                    }
                    let mut draft = draft.clone();
                    let certificate = certificate.clone();
                    draft.view.pending.push(PendingEntry { certificate, forecast: forecast.clone(), dead });
                    draft.parts.extend([*number, shown, u32::from(dead)]);
                    self.choose_pending(before, things, draft, drafts);
                }
            }
        }
    }

    fn forecasts_of(
        &mut self,
        before: &Client<B>,
        things: &Pool,
        view: &View,
        declared: &Certificate,
    ) -> Vec<Forecast> {
        let digest = declared.digest();
        let known = things.forecasts.iter().map(|(_, forecast)| forecast);
        let mut choices: Vec<Forecast> =
            known.filter(|forecast| forecast.certificate == digest).cloned().collect();
        let mut here = view.clone();
        let size = parts(view).map(|part| part.log.size + 1).max().unwrap_or(0);
        let log = self.leaves(before, things, view, size);
        let log = self.world.log(log);
        here.log = self.world.log_at(log).frontier.head();
        choices.push(forecast(&here, declared));
        choices.sort();
        choices.dedup();
        choices
    }

    /// The log of `before` up to `size`.
    fn leaves(&self, before: &Client<B>, things: &Pool, view: &View, size: u64) -> Vec<Digest> {
        let mut leaves = self.world.log_at(before.log).leaves.clone();
        leaves.truncate(size as usize);
        let vector = last_vector(view);
        for place in leaves.len() as u64..size {
            let known = things.forecasts.iter().map(|(_, forecast)| forecast);
            let past = known.filter(|forecast| vector.device(forecast.device) >= forecast.number());
            let at = parts(view).chain(past).find(|forecast| forecast.log.size == place);
            leaves.push(at.map_or_else(|| filler(place), |at| leaf(at.certificate, at.digest())));
        }
        leaves
    }

    /// Gives a client a view; `None`: the client refuses it.
    fn show(
        &mut self,
        client: u32,
        before: &Client<B>,
        things: &Pool,
        draft: &Draft,
        gap: u64,
        verb: Verb,
    ) -> Option<EventOutcome> {
        let known = before.body.floor().log().size;
        let least = parts(&draft.view).map(|part| part.log.size + 1).max().unwrap_or(0);
        let size = least.max(known) + gap;
        let leaves = self.leaves(before, things, &draft.view, size);
        let log = self.world.log(leaves);
        let mut parts = draft.parts.clone();
        parts.extend([u32::MAX, log, verb as u32]);
        if let Some(told) = self.checked.get(&(client, parts.clone())) {
            return told.clone();
        }
        let reply = self.world.log_at(log).reply(draft.view.clone(), known);
        let told = self.told_of(before, draft, &reply, log, verb);
        self.shown.0 += 1;
        self.shown.1 += u64::from(told.is_some());
        self.checked.insert((client, parts), told.clone());
        told
    }

    fn told_of(
        &mut self,
        before: &Client<B>,
        draft: &Draft,
        reply: &ViewReply,
        log: u32,
        verb: Verb,
    ) -> Option<EventOutcome> {
        let mut body = before.body.clone();
        let seen = match verb {
            Verb::Look => body.look(&mut self.world, reply)?,
            _ => body.answer(&mut self.world, reply, outcome(verb))?,
        };
        let entry = |entry: &PendingEntry| {
            let (device, number) = (entry.forecast.device, entry.forecast.number());
            format!("{}{number} {}", name(device), if entry.dead { "dead" } else { "pending" })
        };
        let slot = |slot: &Signed<Structure>| format!("{}{}", name(slot.value.device()), slot.value.number());
        let mut shown: Vec<String> = draft.view.slots.values().map(slot).collect();
        shown.extend(draft.view.pending.iter().map(entry));
        let who = name(body.floor().device);
        let does = match verb {
            Verb::Look => "and is looked at".to_owned(),
            Verb::ViewNothing => format!("and it signs {who}{} without effect", body.floor().used),
            _ => format!("and it signs {who}{}", body.floor().used),
        };
        let what = format!("server: shows {who} [{}], {does}", shown.join(", "));
        let keeps = body.floor().log().size >= reply.view.log.size;
        let mut told = self.told(before, body, Some((&seen, &draft.parts)), keeps.then_some(log), what);
        let client = self.clients.get(told.client);
        if matches!((verb, &client.busy), (Verb::View | Verb::ViewNothing, Busy::Idle)) {
            // It was no change to make there, and was given up.
            let (device, number) = (client.body.floor().device, client.body.floor().used);
            self.settle(&mut told, |archive, known| archive.abort(known, (device, number)));
        }
        for entry in &draft.view.pending {
            told.artefacts.push(self.forecast(&entry.forecast));
        }
        Some(told)
    }
}
