# `e3bm serve` in a container: docker build -t e3bm . && docker run -p 8000:8000 -v models:/models e3bm
# The address is reached from other machines, so the server prints a token at its start and asks for it.
FROM python:3.11-slim
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --disable-pip-version-check -c constraints.txt '.[serve,pretrained,onnx]'
RUN useradd --create-home e3bm && install -d -o e3bm /models
USER e3bm
WORKDIR /models
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=30s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["e3bm"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--keep", "/models/kept.e3bm"]
