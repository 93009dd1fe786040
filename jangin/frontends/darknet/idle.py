"""Options of a cfg that change no result of a run, by section. Darknet reads them only for training, drawing
or GPU scheduling (src/parser.c)."""

from __future__ import annotations

from collections.abc import Mapping

ANYWHERE = frozenset({
    "burnin_update", "clip", "dont_update", "learning_rate", "onlyforward", "stopbackward", "train_only_bn",
})  # fmt: skip
"""Options without effect that every section may have."""
SCHEDULED = frozenset({"stream", "wait_stream"})
"""Options that choose a layer's GPU stream."""
_BOXES = frozenset({
    "beta1", "beta_nms", "cls_normalizer", "counters_per_class", "delta_normalizer", "dets_for_show",
    "dets_for_track", "embedding_layer", "focal_loss", "ignore_thresh", "iou_loss", "iou_normalizer",
    "iou_thresh", "iou_thresh_kind", "jitter", "label_smooth_eps", "map", "max", "max_delta",
    "obj_normalizer", "objectness_smooth", "random", "resize", "show_details", "sim_thresh",
    "track_ciou_norm", "track_history_size", "truth_thresh", "uc_normalizer",
})  # fmt: skip
_OLD_BOXES = frozenset({
    "absolute", "bias_match", "class_scale", "classfix", "coord_scale", "focal_loss", "forced", "jitter",
    "log", "map", "mask_scale", "max", "noobject_scale", "object_scale", "random", "rescore", "resize",
    "thresh",
})  # fmt: skip
IDLE: Mapping[str, frozenset[str]] = {
    "net": frozenset({
        "B1", "B2", "adam", "adversarial_lr", "angle", "aspect", "attention", "augment_speed",
        "badlabels_rejection_percentage", "batch", "blur", "burn_in", "contrastive", "contrastive_color",
        "contrastive_jit_flip", "cutmix", "decay", "dynamic_minibatch", "ema_alpha", "eps",
        "equidistant_point", "exposure", "flip", "gamma", "gaussian_noise", "hue", "label_smooth_eps",
        "learning_rate", "learning_rate_min", "letter_box", "loss_scale", "max_batches", "max_chart_loss",
        "max_crop", "max_epochs", "min_crop", "mixup", "momentum", "mosaic", "mosaic_bound",
        "num_sigmas_reject_badlabels", "optimized_memory", "policy", "power", "resize_step", "saturation",
        "scale", "scales", "seen", "seq_scales", "sequential_subdivisions", "sgdr_cycle", "sgdr_mult",
        "show_receptive_field", "step", "steps", "subdivisions", "track", "try_fix_nan", "unsupervised",
        "use_cuda_graph", "weights_reject_freq", "workspace_size_limit_MB",
    }),
    "convolutional": SCHEDULED | {"angle", "assisted_excitation", "dot", "grad_centr", "reverse"},
    "crop": frozenset({"angle", "exposure", "flip", "saturation", "shift"}),
    "detection": _OLD_BOXES, "gaussian_yolo": _BOXES, "implicit": frozenset({"mean", "std"}),
    "implicit_add": frozenset({"mean", "std"}), "implicit_mul": frozenset({"mean", "std"}),
    "maxpool": frozenset({"maxpool_zero_nonmax"}), "region": _OLD_BOXES, "rnn": frozenset({"logistic"}),
    "route": SCHEDULED, "softmax": frozenset({"noloss"}), "yolo": _BOXES,
}  # fmt: skip
