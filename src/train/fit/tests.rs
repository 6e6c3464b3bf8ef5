//! Heads learn a text of which is known how well it can be predicted.

use std::fs;

use candle_core::Device;

use super::*;
use crate::model::heads::{HeadForm, Taps};
use crate::train::toy::{FIRST, LAYER, Toy, VOCAB, blind_toy, toy};

const PARALLEL: HeadShape = HeadShape {
    form: HeadForm::Parallel,
    depths: 3,
    layers: 1,
    rank: 0,
    one_block: false,
    frozen_head: false,
    taps: Taps::NONE,
    context_layer: None,
};
const RECURRENT: HeadShape = HeadShape { form: HeadForm::Recurrent, one_block: true, ..PARALLEL };

fn settings(shape: HeadShape, loss: &str) -> FitSettings {
    FitSettings {
        shape,
        draft_vocab: 0,
        loss: loss.parse().unwrap(),
        depth_decay: 0.9,
        epochs: 12.0,
        batch: 128,
        rate: 1e-2,
        head_rate: 3e-3,
        warm_up: 0.05,
        floor: 0.05,
        weight_decay: 0.0,
        regularise: 0.0,
        clip: 1.0,
        dropout: 0.0,
        seed: 1,
        held_out: 0.1,
        held_out_rows: 1000,
        evaluate_every: 0,
        patience: 0,
    }
}

fn fit(toy: &Toy, settings: &FitSettings, folder: &str) -> (Fitted, Vec<Report>) {
    let material = Material { states: &toy.states, target: &toy.target, always: &[] };
    let mut reports = Vec::new();
    let fitted = train(material, settings, &toy.folder.join(folder), &Device::Cpu, &mut |report| reports.push(report));
    (fitted.unwrap(), reports)
}

fn tops(fitted: &Fitted, rank: usize) -> Vec<f64> {
    fitted.accuracy.top.iter().map(|top| top[rank]).collect()
}

/// As good as can be, with some room for chance.
fn is_best(share: f64) -> bool {
    (share - FIRST).abs() < 0.04
}

#[test]
fn heads_that_know_the_last_token_predict_as_well_as_can_be() {
    let toy = toy("best", 160);
    let correction = HeadShape { rank: VOCAB, ..PARALLEL };
    let own_blocks = HeadShape { one_block: false, ..RECURRENT };
    for (what, shape) in [("recurrent", RECURRENT), ("own blocks", own_blocks), ("correction", correction)] {
        let (fitted, _) = fit(&toy, &settings(shape, "ce"), what);
        assert!(tops(&fitted, 0).into_iter().all(is_best), "{what}: {}", fitted.accuracy);
        assert!(tops(&fitted, 1).iter().all(|&share| share > 0.97), "{what}: {}", fitted.accuracy);
        let chain = 1.0 + FIRST + FIRST.powi(2) + FIRST.powi(3);
        assert!((fitted.accuracy.chain - chain).abs() < 0.15, "{what}: {}", fitted.accuracy);
    }
    let (fitted, _) = fit(&toy, &settings(PARALLEL, "ce"), "parallel");
    let first = tops(&fitted, 0);
    assert!(is_best(first[0]) && first[2] < 0.65, "{}", fitted.accuracy);
}

#[test]
fn heads_learn_from_a_layer_what_hidden_rows_do_not_say() {
    let toy = blind_toy("blind", 160);
    let of_hidden = HeadShape { depths: 1, ..RECURRENT };
    let parallel = HeadShape { depths: 1, ..PARALLEL };
    let fused = HeadShape { taps: Taps::new(&[LAYER]).unwrap(), ..parallel };
    let (blind, begun) = fit(&toy, &settings(parallel, "ce"), "parallel");
    assert!(tops(&blind, 0)[0] < 0.4, "{}", blind.accuracy);
    let (fitted, reports) = fit(&toy, &settings(fused, "ce"), "fused");
    assert!(is_best(tops(&fitted, 0)[0]), "{}", fitted.accuracy);
    let (of_token, _) = fit(&toy, &settings(of_hidden, "ce"), "recurrent");
    assert!(is_best(tops(&of_token, 0)[0]), "the last token tells as much: {}", of_token.accuracy);
    let first = |reports: &[Report]| {
        reports.iter().find_map(|report| match report {
            Report::Evaluated { step: 0, accuracy, .. } => Some(accuracy.clone()),
            _ => None,
        })
    };
    assert_eq!(first(&reports), first(&begun), "fused heads begin as others do");
}

#[test]
fn every_loss_teaches_and_a_frozen_output_matrix_stays() {
    let toy = toy("losses", 120);
    for loss in ["kl", "tv+0.1ce", "kl+0.1ce"] {
        let shape = HeadShape { depths: 2, ..RECURRENT };
        let (fitted, reports) = fit(&toy, &settings(shape, loss), loss);
        assert!(tops(&fitted, 0).into_iter().all(is_best), "{loss}: {}", fitted.accuracy);
        let Some(Report::Evaluated { accuracy: first, .. }) =
            reports.iter().find(|report| matches!(report, Report::Evaluated { .. }))
        else {
            panic!("the heads are measured before the first step");
        };
        assert!(fitted.accuracy.loss[0] < 0.2 * first.loss[0], "{loss}: {first}, {}", fitted.accuracy);
    }
    let frozen = HeadShape { frozen_head: true, ..RECURRENT };
    let (fitted, _) = fit(&toy, &settings(frozen, "ce"), "frozen");
    assert!(fitted.heads.parameter("head.weight").is_none());
    assert!(is_best(tops(&fitted, 0)[0]), "{}", fitted.accuracy);
}

#[test]
fn a_run_that_was_stopped_goes_on_as_if_it_had_not_been() {
    let toy = toy("resume", 60);
    let shape = HeadShape { rank: 4, ..PARALLEL };
    let settings = FitSettings { epochs: 3.0, dropout: 0.1, evaluate_every: 5, ..settings(shape, "kl+0.1ce") };
    let material = Material { states: &toy.states, target: &toy.target, always: &[] };
    let (whole, stopped) = (toy.folder.join("whole"), toy.folder.join("stopped"));
    fs::create_dir_all(&stopped).unwrap();
    let mut copy = |report: Report| {
        if let Report::Evaluated { step: 25, .. } = report {
            for name in ["last.safetensors", "best.safetensors"] {
                fs::copy(whole.join(name), stopped.join(name)).unwrap();
            }
        }
    };
    let expected = train(material, &settings, &whole, &Device::Cpu, &mut copy).unwrap();
    let mut steps = Vec::new();
    let found = train(material, &settings, &stopped, &Device::Cpu, &mut |report| match report {
        Report::Began { step, .. } | Report::Evaluated { step, .. } => steps.push(step),
        Report::Stepped { .. } => {}
    });
    let found = found.unwrap();
    assert_eq!(steps[..2], [25, 30]);
    assert_eq!((found.step, &found.accuracy), (expected.step, &expected.accuracy));
    for (found, expected) in found.heads.parameters.iter().zip(&expected.heads.parameters) {
        let values = |var: &candle_core::Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values(&found.var), values(&expected.var), "{}", found.name);
    }
    let mut again = Vec::new();
    train(material, &settings, &whole, &Device::Cpu, &mut |report| again.push(report)).unwrap();
    assert_eq!(again.len(), 1, "a finished run only says so");
    let other = FitSettings { seed: 2, ..settings.clone() };
    let error = train(material, &other, &whole, &Device::Cpu, &mut |_| {}).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidOption, "{error}");
    let log = fs::read_to_string(whole.join("log.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 5 && lines[0]["step"] == 0 && lines[1]["held_out"]["top"][0][0].is_f64());
}

#[test]
fn tokens_outside_of_the_draft_vocabulary_are_not_predicted() {
    let toy = toy("cut", 60);
    let settings = FitSettings { draft_vocab: 12, epochs: 2.0, ..settings(RECURRENT, "ce") };
    let material = Material { states: &toy.states, target: &toy.target, always: &[3, 4] };
    let fitted = train(material, &settings, &toy.folder.join("run"), &Device::Cpu, &mut |_| {}).unwrap();
    let tokens = &fitted.heads.vocabulary.tokens;
    assert!(tokens.len() == 12 && tokens.contains(&3) && tokens.contains(&4));
    let top_10 = fitted.accuracy.top[0][9];
    assert!(fitted.coverage < 1.0 && top_10 <= fitted.coverage + 0.05, "{top_10} of {}", fitted.coverage);
    assert_eq!(fitted.heads.base.dims(), [12, toy.target.lm_head().columns]);
}

#[test]
fn training_ends_when_nothing_gets_better() {
    let toy = toy("patience", 40);
    let settings =
        FitSettings { rate: 1e-12, head_rate: 1e-12, evaluate_every: 2, patience: 3, ..settings(PARALLEL, "ce") };
    let (fitted, reports) = fit(&toy, &settings, "run");
    assert_eq!((fitted.step, reports.len()), (0, 5), "the start, four evaluations, of which three were no better");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let toy = toy("refused", 40);
    let material = Material { states: &toy.states, target: &toy.target, always: &[] };
    let valid = settings(PARALLEL, "ce");
    let shape = |shape: HeadShape| FitSettings { shape, ..valid.clone() };
    for (what, settings) in [
        ("depths", shape(HeadShape { depths: 0, ..PARALLEL })),
        ("layers", shape(HeadShape { layers: 2, ..RECURRENT })),
        ("blocks", shape(HeadShape { one_block: true, ..PARALLEL })),
        ("a layer that was not kept", shape(HeadShape { taps: Taps::new(&[1]).unwrap(), ..PARALLEL })),
        ("batch", FitSettings { batch: 0, ..valid.clone() }),
        ("dropout", FitSettings { dropout: 1.0, ..valid.clone() }),
        ("held out", FitSettings { held_out: 1.0, ..valid.clone() }),
    ] {
        let error = train(material, &settings, &toy.folder.join("run"), &Device::Cpu, &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption, "{what}: {error}");
    }
}

#[test]
fn rates_rise_and_fall() {
    let settings = FitSettings { warm_up: 0.1, floor: 0.2, ..settings(PARALLEL, "ce") };
    let rates: Vec<f32> = (0..100).map(|step| settings.schedule(step, 100)).collect();
    assert!((rates[0] - 0.1).abs() < 1e-6 && (rates[9] - 1.0).abs() < 1e-6);
    assert!(rates[10..].windows(2).all(|pair| pair[1] <= pair[0]));
    assert!((rates[99] - 0.2).abs() < 0.01, "{}", rates[99]);
}
