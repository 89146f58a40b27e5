"""Checks of settings against tasks and model, before anything is opened."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from slipstream.dispatch.admission import check_job
from slipstream.errors import ConfigError
from slipstream.graders.base import TimedGrader
from slipstream.graders.registry import find_grader
from slipstream.names import user_code
from slipstream.render.load import check_template
from slipstream.settings import RunConfig
from slipstream.settings.prompt import unlike_training
from slipstream.tasks.jobs import make_job
from slipstream.types import JobKey, Task
from slipstream.wiring.models import make_renderer, trained_folder
from slipstream.wiring.pacing import make_policy

log = logging.getLogger(__name__)


def check_tasks(config: RunConfig, tasks: Iterable[Task], *, phase: str) -> None:
    """Refuse a task that is above a limit by itself, and a deadline that would end its grading too early: work that
    hangs would then have no verdict instead of reward 0."""
    _, limits = make_policy(config.dispatch)
    deadline_s, start_s = config.dispatch.deadlines.grade_s, config.sandbox.start_timeout_s
    for task in tasks:
        key = JobKey(phase=phase, step=0, task_id=task.id, sample=0)
        check_job(make_job(task, key, run_seed=config.seed, group_size=config.samples), limits)
        grader = find_grader(task.grading.kind)
        with user_code(f"grader {task.grading.kind}: its limit_s for task {task.id}"):
            limit_s = grader.limit_s(task.grading.spec) if isinstance(grader, TimedGrader) else 0.0
        needed_s = limit_s + start_s
        if needed_s > deadline_s:
            raise ConfigError(
                f"grading task {task.id} may take {limit_s:g} s, and starting its sandbox {start_s:g} s, but "
                f"dispatch.deadlines.grade_s={deadline_s:g}: set that to {needed_s:g} or more",
                key="dispatch.deadlines.grade_s",
                value=deadline_s,
                remedies=(f"dispatch.deadlines.grade_s={needed_s:g}",),
            )


def check_prompts(config: RunConfig) -> None:
    """Refuse a chat format that is not the model's, and warn of settings that show a trained model something else
    than it was trained on."""
    folder = trained_folder(config.model)
    if folder is None:
        return
    for sentence in unlike_training(config, folder):
        log.warning("%s", sentence)
    model = config.model
    if mismatch := check_template(folder, family=model.family, args=model.family_args):
        if model.template_mismatch == "stop":
            raise ConfigError(
                mismatch,
                key="model.family",
                value=model.family,
                remedies=("model.family=template", "model.template_mismatch=allow"),
            )
        log.warning("%s", mismatch)
    renderer = make_renderer(model)
    if renderer.limits:
        log.warning("%s as %s: %s", folder, renderer.family, "; ".join(renderer.limits))
